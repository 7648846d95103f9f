"""The house: rooms import rooms below them alone, commands import no other command, and functions are short."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import indrnn

SOURCE = Path(indrnn.__file__).parent
ROOMS = (
    ("_lazy",),
    ("files", "checks", "system", "words"),
    ("ops",),
    ("layers",),
    ("networks",),
    ("baselines",),
    ("saving",),
    ("figures",),
    ("training",),
    ("tasks", "forecast"),
    ("analysis",),
    ("cli",),
)
"""From the bottom; rooms of one floor do not import each other."""
FLOOR = {room: floor for floor, rooms in enumerate(ROOMS) for room in rooms}
LONGEST_FUNCTION, LONGEST_COMMAND = 60, 200
MODULES = sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> tuple[str, ...]:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imported(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Line and module, below the package, of each import in a file, those in functions and under conditions too."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path)[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [[*(node.module or "").split("."), alias.name] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1]
            module = node.module.split(".") if node.module else []
            names = [["indrnn", *base, *module, alias.name] for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("indrnn."):
            names = [node.value.partition(":")[0].split(".")] if ":" in node.value and " " not in node.value else []
        else:
            continue
        for name in names:
            if name[0] == "indrnn" and len(name) > 1:
                yield node.lineno, tuple(name[1:])


def test_every_module_has_a_room() -> None:
    rooms = {name_of(path)[0] for path in MODULES if name_of(path)}
    assert rooms - {"__main__"} <= FLOOR.keys()


@pytest.mark.parametrize("room", FLOOR)
def test_rooms_import_from_below_alone(room: str) -> None:
    wrong = []
    for path in MODULES:
        if name_of(path)[:1] != (room,):
            continue
        for line, (target, *_) in imported(path):
            if target in FLOOR and target != room and FLOOR[target] >= FLOOR[room]:
                wrong.append(f"{path.relative_to(SOURCE)}:{line} imports {target}, which is not below {room}")
    assert not wrong, "\n".join(wrong)


def test_no_command_imports_another() -> None:
    shared = {"main", "parse"}
    wrong = []
    for path in sorted((SOURCE / "cli").glob("*.py")):
        if path.stem in {"__init__", "completion"}:
            continue
        for line, (target, *rest) in imported(path):
            is_command = target == "cli" and rest and (SOURCE / "cli" / f"{rest[0]}.py").exists()
            if is_command and rest[0] not in {*shared, path.stem}:
                wrong.append(f"cli/{path.name}:{line} imports {rest[0]}")
    assert not wrong, "\n".join(wrong)


def test_commands_are_short_files() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in (SOURCE / "cli").rglob("*.py")}
    assert {path.name: length for path, length in lengths.items() if length > LONGEST_COMMAND} == {}


def test_functions_are_short() -> None:
    """Triton's kernels aside, which are compiled as a whole."""
    long = []
    for path in MODULES:
        if path.name.endswith("_kernels.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long.append(f"{path.relative_to(SOURCE)}:{node.lineno} {node.name} has {lines} lines")
    assert not long, "\n".join(long)


@pytest.mark.parametrize("room", ["cli", "analysis", "training"])
def test_no_room_above_the_tasks_asks_for_the_kind_of_a_recipe(room: str) -> None:
    """Nor does the loop: commands, analyses and training know the protocol of recipes alone."""
    kinds = {"AddingRecipe", "PixelsRecipe", "PennRecipe", "TextRecipe", "SkeletonRecipe", "Fit"}
    wrong = []
    for path in sorted((SOURCE / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
                if asked & kinds:
                    wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and node.left.value == "fit":
                wrong.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not wrong, "\n".join(wrong)


def test_members_of_public_classes_of_tasks_are_described_there_or_in_the_protocol() -> None:
    """Where ruff's rule does not look: a member of a recipe or task may have the docstring of what it overrides."""
    wrong = []
    for path in (SOURCE / "tasks").rglob("*.py"):
        module = importlib.import_module(".".join(("indrnn", *name_of(path))))
        for kind in vars(module).values():
            if not inspect.isclass(kind) or kind.__module__ != module.__name__ or kind.__name__.startswith("_"):
                continue
            for name, member in vars(kind).items():
                if getattr(member, "__qualname__", name) not in (name, f"{kind.__name__}.{name}"):
                    continue  # the default of a field, which is a function
                function = isinstance(member, property | classmethod) or inspect.isfunction(member)
                if function and name[0] != "_" and not inspect.getdoc(getattr(kind, name)):
                    wrong.append(f"{module.__name__}.{kind.__name__}.{name}")
    assert not wrong, "\n".join(wrong)
