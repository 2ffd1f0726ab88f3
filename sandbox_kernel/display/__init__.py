"""The output firewall: the only way from a guest's event to a Jupyter message."""

from sandbox_kernel.display.firewall import Firewall

__all__ = ["Firewall"]
