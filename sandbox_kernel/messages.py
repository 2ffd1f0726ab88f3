"""Safe events as Jupyter messages.  Pure.

Takes nothing but what `display` made safe; what it returns goes to IOPub as it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sandbox_kernel.display import safe


class Message(NamedTuple):
    """The two arguments of `Session.send` that depend on the event."""

    msg_type: str
    content: dict[str, Any]


def to_iopub(output: safe.Safe, *, execution_count: int) -> Message | None:
    """Return the IOPub message for an output, or None if it makes none."""
    match output:
        case safe.Stream():
            return Message("stream", {"name": output.name, "text": output.text})
        case safe.Bundle():
            content: dict[str, Any] = {
                "data": dict(output.data),
                "metadata": dict(output.metadata),
                "transient": {"display_id": output.display_id} if output.display_id else {},
            }
            if output.kind is safe.BundleKind.EXECUTE_RESULT:
                del content["transient"]
                content["execution_count"] = execution_count
            return Message(output.kind.value, content)
        case safe.Clear():
            return Message("clear_output", {"wait": output.wait})
        case safe.Error():
            return Message("error", error_content(output))
        case _:
            return None


def error_content(error: safe.Error) -> dict[str, Any]:
    """What `error` on IOPub and an `execute_reply` say of an error."""
    return {
        "ename": error.ename,
        "evalue": error.evalue,
        "traceback": list(error.traceback),
    }


def page_payload(text: str) -> dict[str, Any]:
    """A pager's text as the one payload that is ever sent."""
    return {"source": "page", "data": {"text/plain": text}, "start": 0}


def complete_content(completion: safe.Completion | None, cursor: int) -> dict[str, Any]:
    """A `complete_reply`; empty if nothing is known."""
    if completion is None:
        return {
            "status": "ok",
            "matches": [],
            "cursor_start": cursor,
            "cursor_end": cursor,
            "metadata": {},
        }
    types = [
        {"start": completion.start, "end": completion.end, "text": text, "type": kind}
        for text, kind in zip(completion.matches, completion.types, strict=True)
    ]
    return {
        "status": "ok",
        "matches": list(completion.matches),
        "cursor_start": completion.start,
        "cursor_end": completion.end,
        "metadata": {"_jupyter_types_experimental": types},
    }


def inspect_content(inspection: safe.Inspection | None) -> dict[str, Any]:
    """An `inspect_reply`; not found if nothing is known."""
    found = inspection is not None and inspection.found
    data = {"text/plain": inspection.text} if inspection is not None and found else {}
    return {"status": "ok", "found": found, "data": data, "metadata": {}}


def is_complete_content(completeness: safe.Completeness | None) -> dict[str, Any]:
    """An `is_complete_reply`; `unknown` if nothing is known."""
    if completeness is None:
        return {"status": "unknown"}
    content: dict[str, Any] = {"status": completeness.status}
    if completeness.status == "incomplete":
        content["indent"] = completeness.indent
    return content
