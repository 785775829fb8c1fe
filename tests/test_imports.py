"""The rooms: imports run one way, torch stays in launch/ and probe/, and no kernel is named where the tables decide."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "attnroute"
#: A room may import rooms of a lower rank and itself. Modules beside the rooms are leaves: everyone may import them.
RANK = {"registry": 0, "dispatch": 1, "models": 2, "engines": 2, "planning": 3, "launch": 4, "probe": 5, "cli": 6}
#: Packages that only launch/ and probe/ may import; elsewhere they are looked up in sys.modules.
GPU_PACKAGES = {"torch", "flashinfer", "flash_attn", "vllm", "triton", "cutlass"}
#: The core's own dependencies are imported inside functions, so that `import attnroute` stays cheap.
LAZY_PACKAGES = {"yaml", "jsonschema", "packaging", "cuda"}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def room_of(path: Path) -> str | None:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else None


def for_types_only(tree: ast.Module) -> set[ast.AST]:
    """Nodes under `if TYPE_CHECKING:`."""
    nodes: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            nodes.update(inner for statement in node.body for inner in ast.walk(statement))
    return nodes


def imports(tree: ast.Module, path: Path) -> Iterator[tuple[ast.AST, str]]:
    """All imports as absolute dotted names, `from a import b` as `a.b`; import_module("x") with a constant too."""
    package = ("attnroute", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from ((node, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = ast.unparse(node.func).rpartition(".")[2]
            if called in {"import_module", "__import__"}:
                yield node, str(node.args[0].value)


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def at_module_level(tree: ast.Module) -> set[ast.AST]:
    """Nodes that run when the module is imported."""
    nodes: set[ast.AST] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        nodes.add(node)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            stack.extend(ast.iter_child_nodes(node))
    return nodes


def test_every_folder_is_a_known_room() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders <= set(RANK)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_run_one_way(path: Path) -> None:
    own = room_of(path)
    tree = parse(path)
    types_only = for_types_only(tree)
    lazy = set(ast.walk(tree)) - at_module_level(tree)
    wrong = []
    for node, module in imports(tree, path):
        parts = module.split(".")
        if parts[0] != "attnroute" or len(parts) < 2 or parts[1] not in RANK or parts[1] == own:
            continue
        if own is None:
            # The front door offers names from the rooms on first access, `python -m attnroute` is the command line;
            # the other leaves know no room.
            front_door = path.name == "__init__.py" and (node in lazy or node in types_only)
            allowed = front_door or (path.name == "__main__.py" and parts[1] == "cli")
        else:
            allowed = RANK[parts[1]] < RANK[own]
        if own == "cli" and parts[1] in {"launch", "probe"}:
            allowed = node in lazy or node in types_only
        if not allowed:
            wrong.append(f"{name_of(path)}:{getattr(node, 'lineno', 0)}: imports {module}")
    assert not wrong


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) not in {"launch", "probe"}], ids=name_of)
def test_only_launch_and_probe_import_torch(path: Path) -> None:
    assert not [module for _, module in imports(parse(path), path) if module.partition(".")[0] in GPU_PACKAGES]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_dependencies_are_imported_inside_functions(path: Path) -> None:
    tree = parse(path)
    eager = at_module_level(tree) - for_types_only(tree)
    heavy = LAZY_PACKAGES | GPU_PACKAGES
    assert not [module for node, module in imports(tree, path) if module.partition(".")[0] in heavy and node in eager]


def docstrings(tree: ast.Module) -> set[ast.AST]:
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr):
            found.add(node.body[0].value)
    return found


@functools.cache
def catalogue_names() -> re.Pattern[str]:
    """Matches the ids of kernels, and of distributions that are no engine, as whole words."""
    names: list[str] = []
    for catalogue in ("kernels", "packages"):
        text = (ROOT / "capabilities" / f"{catalogue}.yaml").read_text(encoding="utf-8")
        names += yaml.safe_load(text)[catalogue]
    names = sorted(set(names) - {path.stem for path in (ROOT / "capabilities" / "engines").glob("*.yaml")})
    return re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, names))})(?![\w-])")


@pytest.mark.parametrize("path", [p for p in MODULES if room_of(p) in {"registry", "dispatch"}], ids=name_of)
def test_registry_and_dispatch_name_no_kernel(path: Path) -> None:
    kernel = catalogue_names()
    tree = parse(path)
    prose = docstrings(tree)
    named = []
    for node in ast.walk(tree):
        if node in prose:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # An example in a message decides nothing.
            text = re.sub(r"\bsuch as [\w-]+", "", node.value)
        elif isinstance(node, (ast.Name, ast.arg)):
            text = node.id if isinstance(node, ast.Name) else node.arg
        else:
            continue
        if kernel.search(text):
            named.append(f"{name_of(path)}:{getattr(node, 'lineno', 0)}: {text!r}")
    assert not named


def test_import_attnroute_is_light() -> None:
    look = "import sys, attnroute; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    )
    loaded = set(done.stdout.split())
    assert "attnroute" in loaded
    # Path files of the environment may have imported some of these before attnroute was.
    bare = subprocess.run(
        [sys.executable, "-c", look.replace(", attnroute", "")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    before = set(bare.stdout.split())
    assert not (loaded - before) & {
        "yaml",
        "jsonschema",
        "packaging",
        "torch",
        "numpy",
        "argparse",
        "importlib_metadata",
    }
