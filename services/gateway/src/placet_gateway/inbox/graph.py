"""Decides how a run's tasks are drawn: in columns by what has to be done before, each below the other, edges between.

Numbers only; the template writes them as SVG, so that every text in it is a text node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placet.views import TaskView

WIDTH, HEIGHT = 208, 52
GAP_X, GAP_Y = 56, 14
MARGIN = 4
TASKS_DRAWN_MAX = 120
"""More are a list only."""
TITLE_CHARS = 26


@dataclass(frozen=True, slots=True)
class Node:
    """One task."""

    task: TaskView
    x: int
    y: int
    title: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The drawing. `edges` are paths."""

    width: int
    height: int
    nodes: tuple[Node, ...]
    edges: tuple[str, ...]


def graph_of(tasks: Sequence[TaskView]) -> Graph | None:
    """The drawing; None where there is nothing to draw, or too much."""
    if not 0 < len(tasks) <= TASKS_DRAWN_MAX:
        return None
    columns = _columns(tasks)
    rows: dict[int, int] = {}
    nodes: dict[str, Node] = {}
    for task in tasks:
        column = columns[task.id]
        row = rows.get(column, 0)
        rows[column] = row + 1
        x, y = MARGIN + column * (WIDTH + GAP_X), MARGIN + row * (HEIGHT + GAP_Y)
        title = task.title or task.id
        nodes[task.id] = Node(task, x, y, title if len(title) <= TITLE_CHARS else f"{title[: TITLE_CHARS - 1]}…")
    edges = [_edge(nodes[before], nodes[task.id]) for task in tasks for before in task.depends_on if before in nodes]
    return Graph(
        width=2 * MARGIN + len(rows) * (WIDTH + GAP_X) - GAP_X,
        height=2 * MARGIN + max(rows.values()) * (HEIGHT + GAP_Y) - GAP_Y,
        nodes=tuple(nodes.values()),
        edges=tuple(edges),
    )


def _columns(tasks: Sequence[TaskView]) -> Mapping[str, int]:
    """How many steps of others come before each. A cycle, which no plan has, ends where it began."""
    known = {task.id: task for task in tasks}
    columns: dict[str, int] = {}
    for first in tasks:
        path: list[str] = [first.id]
        while path:
            at = known[path[-1]]
            before = [name for name in at.depends_on if name in known and name not in path]
            missing = next((name for name in before if name not in columns), None)
            if missing is not None:
                path.append(missing)
                continue
            columns[at.id] = max((columns[name] + 1 for name in before), default=0)
            path.pop()
    return columns


def _edge(start: Node, end: Node) -> str:
    x1, y1 = start.x + WIDTH, start.y + HEIGHT // 2
    x2, y2 = end.x, end.y + HEIGHT // 2
    bend = max(24, (x2 - x1) // 2)
    return f"M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}"
