"""JSON text -> the Python value that Jupyter sends on.

Invariants: the value is written again from what was understood, never passed on
as text; its depth, its nodes and its numbers are bounded.
"""

from __future__ import annotations

import json
import math

from sandbox_kernel.display.refused import RefusedError

#: Characters of the text.
MAX_JSON = 1024 * 1024
MAX_DEPTH = 32
MAX_NODES = 20_000


def parse(text: str) -> object:
    """Parse JSON under caps.

    Raises:
        RefusedError: not JSON, or larger, deeper or with more values than allowed.
    """
    if len(text) > MAX_JSON:
        raise RefusedError("larger than 1 MiB")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError("not JSON") from None
    layer = [value]
    nodes = 0
    for _ in range(MAX_DEPTH + 1):
        nodes += len(layer)
        if nodes > MAX_NODES:
            raise RefusedError(f"more than {MAX_NODES} values")
        layer = [child for node in layer for child in _children(node)]
        if not layer:
            return value
    raise RefusedError(f"nested deeper than {MAX_DEPTH} levels")


def _children(node: object) -> list[object]:
    """The values directly inside of one, its keys among them."""
    if isinstance(node, dict):
        return [*node.keys(), *node.values()]
    if isinstance(node, list):
        return node
    if isinstance(node, float) and not math.isfinite(node):
        raise RefusedError("a number that is not finite")
    if isinstance(node, str) and not _well_formed(node):
        raise RefusedError("text that is not Unicode")
    return []


def _well_formed(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
