"""What runs inside the sandbox: the supervisor, and the worker that it watches.

Invariant: the standard library and `sandbox_kernel.{wire,errors}` only, in the grammar of
Python 3.9; every file here travels as source over stdin.
"""
