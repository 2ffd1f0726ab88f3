"""IPython's shell class, with all that it shows sent as events.

Invariant: honest code cannot tell it from ipykernel 7.4's shell, but for what a sandbox has
not: comms, payloads that change the notebook, and a kernel that `exit` could end.
"""

from __future__ import annotations

# Most of IPython has no types, and `shell` is this module's own.
# mypy: allow-untyped-calls
import os
import tempfile
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir
from IPython.utils._process_posix import system
from traitlets import Any as AnyTrait
from traitlets import CBool, Instance, Type, default

from sandbox_kernel.guest import hints
from sandbox_kernel.guest.magics import KernelMagics
from sandbox_kernel.guest.publish import without_our_frames

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class NoFiles(ProfileDir):
    """A profile that makes no directories before something is put there."""

    def check_dirs(self) -> None:
        """Leave them out."""


class _Compiler(CachingCompiler):
    """Gives cells the file names that ipykernel gives: libraries know them."""

    def get_code_name(self, raw_code: str, _code: str, _number: int) -> str:
        """Return a file name that depends on the code alone."""
        number = zlib.crc32(raw_code.encode("utf-8", "replace"))
        return f"{tempfile.gettempdir()}/ipykernel_{os.getpid()}/{number}.py"


class _DisplayPublisher(DisplayPublisher):
    """Displays as events."""

    #: The shell that it is of.
    shell: Any

    def publish(
        self,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
        source: object = None,  # noqa: ARG002 - of older versions of IPython
        *,
        transient: Mapping[str, Any] | None = None,
        update: bool = False,
        **_: object,
    ) -> None:
        """Show a MIME bundle."""
        self._validate_data(data, metadata or {})
        display_id = str((transient or {}).get("display_id") or "")
        self.shell.publisher.display(data, metadata, display_id=display_id, update=update)

    def clear_output(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - IPython's
        """Clear the cell's output."""
        self.shell.publisher.clear(wait=bool(wait))


class _DisplayHook(DisplayHook):
    """The value of a cell's last expression as an event."""

    #: The shell that it is of.
    shell: Any
    #: The bundle in the making; while there is one, an error is one of formatting.
    bundle: tuple[dict[str, Any], dict[str, Any]] | None = None

    def start_displayhook(self) -> None:
        """Begin a bundle."""
        self.bundle = ({}, {})

    def write_output_prompt(self) -> None:
        """Leave the prompt to the host."""

    def write_format_data(self, format_dict: Any, md_dict: Any = None) -> None:
        """Take the bundle."""
        self.bundle = (format_dict, md_dict or {})

    def finish_displayhook(self) -> None:
        """Send the bundle."""
        if self.bundle and self.bundle[0]:
            self.shell.publisher.result(*self.bundle)
        self.bundle = None


class _Kernel:
    """What libraries look for in `get_ipython().kernel`."""

    def __init__(self, shell: ZMQInteractiveShell) -> None:
        self.shell = shell
        self.eventloop = None

    def get_parent(self, _channel: str = "shell") -> dict[str, Any]:
        """Return no header: Jupyter's messages end at the host."""
        return {}


class ZMQInteractiveShell(InteractiveShell):
    """IPython's shell.  Named as ipykernel's: libraries know notebooks by this name.

    `config.IPKernelApp` is left out although ipykernel has it: `tqdm.auto` would take it
    for a promise of widgets, and its plain bar is what can be shown.
    """

    displayhook_class = Type(_DisplayHook)
    display_pub_class = Type(_DisplayPublisher)
    compiler_class = Type(_Compiler)
    kernel = AnyTrait()
    publisher = AnyTrait()
    network = CBool(default_value=False)
    autoindent = CBool(default_value=False)
    keepkernel_on_exit: bool | None = None
    exiter = Instance(ZMQExitAutocall)

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        return ZMQExitAutocall(self)

    @default("kernel")
    def _default_kernel(self) -> _Kernel:
        return _Kernel(self)

    def init_environment(self) -> None:
        """Set what ipykernel sets: colours, and no pager, in the programs of `!`."""
        os.environ.update(
            TERM="xterm-color",
            CLICOLOR="1",
            FORCE_COLOR="1",
            CLICOLOR_FORCE="1",
            PAGER="cat",
            GIT_PAGER="cat",
        )

    def init_virtualenv(self) -> None:
        """Leave `sys.path` as the image has it."""

    def init_hooks(self) -> None:
        """Send pages as events."""
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self._page), 99)

    def init_magics(self) -> None:
        """Add the magics that differ in a notebook."""
        super().init_magics()
        self.register_magics(KernelMagics)
        self.magics_manager.register_alias("ed", "edit")

    def _page(self, text: Any, **_: object) -> None:
        self.publisher.page(text.get("text/plain", "") if isinstance(text, dict) else text)

    def enable_gui(self, gui: str | None = None) -> None:
        """Refuse event loops of windows: there is no screen."""
        if gui not in (None, "inline", "none", "asyncio"):
            raise UsageError(f"the sandbox has no screen for the event loop of `{gui}`")

    def ask_exit(self) -> None:
        """End the cell as `sys.exit` does; the kernel goes on."""
        raise SystemExit

    def set_next_input(self, text: str, replace: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        """Leave the notebook's cells to the user."""
        self.publisher.note("the sandbox may not write into the notebook's cells: nothing inserted")

    @contextmanager
    def _tee(self, channel: str) -> Iterator[None]:  # noqa: ARG002 - IPython passes it by name
        """Keep no copy of what cells print: IPython's history would grow without bound."""
        yield

    def run_cell(self, *args: Any, **kwargs: Any) -> Any:
        """Forget the last error, then run."""
        self._last_traceback = None
        self._last_traceback_during_displayhook = False
        return super().run_cell(*args, **kwargs)

    def _get_exc_info(self, exc_tuple: Any = None) -> Any:
        etype, value, tb = super()._get_exc_info(exc_tuple)
        return etype, value, without_our_frames(tb)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: Any) -> None:
        hook: Any = self.displayhook
        if hook.bundle is not None:
            # An error of formatting: the cell fails, although its code did not.
            self._last_traceback_during_displayhook = True
            hook.bundle = None
        self.publisher.error(evalue, etype.__name__, stb)
        self._last_traceback = stb

    def system_piped(self, cmd: str) -> None:
        """Run a command line; what it prints is this cell's output."""
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        # The status is kept in the namespace: a value would be displayed.
        code = self.user_ns["_exit_code"] = system(self.var_expand(cmd, depth=1))
        if code and not self.network and hints.installs(cmd):
            self.publisher.note(hints.OFFLINE)
        if code and getattr(self, "system_raise_on_error", False):
            from subprocess import CalledProcessError  # noqa: PLC0415

            raise CalledProcessError(code, cmd)

    system = system_piped
