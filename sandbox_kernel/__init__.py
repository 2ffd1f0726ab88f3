"""A Jupyter kernel whose cells run in a sandbox."""

#: The version of the distribution, too; `importlib.metadata` would cost a kernel's start 20 ms.
__version__ = "0.1.0"
