"""Write the diagram and the table in `reference/protocol.md`, from `wire.MAY_SEND`.

python docs/diagrams.py
"""

from __future__ import annotations

import re
from pathlib import Path

from sandbox_kernel import wire
from sandbox_kernel.wire import Phase, Role

PAGE = Path(__file__).parent / "reference" / "protocol.md"

#: The worker speaks as the guest does; what is its own is told in words.
SPEAKERS = (Role.HOST, Role.GUEST)


def name(event: type) -> str:
    """`ExecuteReply` as it stands in a frame."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", event.__name__).lower()


def state(phase: Phase) -> str:
    """A phase as Mermaid can take it."""
    return phase.name.lower()


def diagram() -> str:
    """The events that move a conversation to another phase, as a Mermaid state diagram."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {state(Phase.STARTING)}"]
    for phase in Phase:
        for following in Phase:
            lines += [
                f"    {state(phase)} --> {state(following)}: {speaker.value} {name(event)}"
                for speaker in SPEAKERS
                for event, moves in wire.MAY_SEND[speaker].items()
                if moves.get(phase) is following is not phase
            ]
    return "\n".join([*lines, f"    {state(Phase.CLOSING)} --> [*]", "```"])


def table() -> str:
    """Who may say what in which phase, as a Markdown table."""
    lines = [
        "| from | event | " + " | ".join(phase.value for phase in Phase) + " |",
        "|---|---|" + "---|" * len(Phase),
    ]
    for speaker in SPEAKERS:
        for event, moves in wire.MAY_SEND[speaker].items():
            cells = [
                ""
                if phase not in moves
                else "yes"
                if moves[phase] is phase
                else f"→ {moves[phase].value}"
                for phase in Phase
            ]
            lines.append(f"| {speaker.value} | `{name(event)}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def current(page: str) -> str:
    """The page with both brought up to date.

    Raises:
        ValueError: A mark is not there, so nothing would be replaced.
    """
    for mark, text in (("diagram", diagram()), ("table", table())):
        begin, end = f"<!-- {mark}: written by docs/diagrams.py -->\n", f"<!-- {mark}: end -->\n"
        start = page.index(begin) + len(begin)
        page = page[:start] + text + "\n" + page[page.index(end, start) :]
    return page


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
