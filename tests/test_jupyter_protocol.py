"""The public conformance suite for Jupyter kernels, with every sample filled in."""

from __future__ import annotations

import jupyter_kernel_test
import pytest

pytestmark = pytest.mark.usefixtures("image")


class TestKernel(jupyter_kernel_test.KernelTests):
    """`aisandbox-docker` against the real engine."""

    kernel_name = "aisandbox-docker"
    language_name = "python"
    file_extension = ".py"

    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    code_page_something = "print?"
    code_generate_error = "raise ValueError('test')"
    code_inspect_sample = "print"
    code_clear_output = "from IPython.display import clear_output; clear_output()"
    code_history_pattern = "1?2?3"
    supported_history_operations = ("tail", "range", "search")

    code_execute_result = (
        {"code": "1+2+3", "result": "6"},
        {"code": "[n*n for n in range(1, 4)]", "result": "[1, 4, 9]"},
        {"code": "1.2", "result": "1.2"},
    )
    code_display_data = (
        {"code": "from IPython.display import HTML, display; display(HTML('<b>t</b>'))",
         "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\\\frac{1}{2}'))",
         "mime": "text/latex"},
    )  # fmt: skip
    completion_samples = (
        {"text": "zi", "matches": {"zip"}},
        {"text": "import sy", "matches": {"symtable", "sys", "sysconfig", "syslog"}},
    )
    complete_code_samples = ("1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n")
    incomplete_code_samples = ("print('''hello", "def f(x):\n  x*2")
    invalid_code_samples = ("import = 7q",)
