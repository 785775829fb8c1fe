"""What a user installs: a complete sdist, and a wheel with compiled tables and schemas that answers without YAML."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DATA = "attnroute/_data/capabilities.json"
#: Modules that an answer from an installed wheel must not import.
HEAVY = {"yaml", "_yaml", "jsonschema", "torch", "numpy"}
GEMMA = ROOT / "examples" / "gemma-4-26b-a4b" / "config.json"


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a command with a clean Python environment; its output is part of the failure."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "ATTNROUTE"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=clean | env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel that was built from the unpacked sdist (what `build` does)."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_venv(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it; dependencies are those of the running interpreter, so no network is used."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=True)
    scheme = sysconfig.get_preferred_scheme("prefix")
    site = Path(sysconfig.get_path("purelib", scheme, {"base": str(folder), "platbase": str(folder)}))
    # A path file adds the folder only: path files inside it, such as an editable attnroute's, are not read.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = venv_python(folder)
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--force-reinstall", wheel, cwd=folder)
    return folder


def venv_python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def names_of(archive: Path) -> set[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            return set(opened.namelist())
    with tarfile.open(archive) as opened_tar:
        return {name.partition("/")[2] for name in opened_tar.getnames()}


def test_sdist_has_all_that_a_wheel_and_the_tests_need(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    names = names_of(sdist)
    for wanted in ("hatch_build.py", "LICENSE", "README.md", "CONTRIBUTING.md", "attnroute/py.typed", ".ci/run"):
        assert wanted in names
    tables = {path.relative_to(ROOT).as_posix() for path in (ROOT / "capabilities").rglob("*.yaml")}
    assert tables
    assert tables <= names
    assert "tests/test_packaging.py" in names
    assert not {
        name for name in names if "/.cache/" in name or name.startswith((".cache", ".gpu", "shared", "attnroute/_data"))
    }


def test_wheel_has_compiled_tables_schemas_and_types_and_nothing_else(wheel: Path) -> None:
    names = names_of(wheel)
    assert {DATA, "attnroute/py.typed"} <= names
    schemas = {f"attnroute/_data/schema/{path.name}" for path in (ROOT / "capabilities" / "schema").glob("*.json")}
    assert schemas
    assert schemas <= names
    assert not {name for name in names if name.endswith((".yaml", ".yml", ".pyc"))}
    assert {name.partition("/")[0] for name in names} == {"attnroute", "attnroute-0.1.0.dist-info"}
    with zipfile.ZipFile(wheel) as opened:
        for line in opened.read(DATA).decode().splitlines():
            json.loads(line)


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        meta = email.message_from_bytes(opened.read("attnroute-0.1.0.dist-info/METADATA"))
        scripts = opened.read("attnroute-0.1.0.dist-info/entry_points.txt").decode()
    core = {line for line in meta.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {line.split(">")[0] for line in core} == {"pyyaml", "jsonschema", "packaging"}
    assert set(meta.get_all("Provides-Extra", [])) == {"cuda", "kernels", "fa2", "test", "dev"}
    assert meta["License-Expression"] == "Apache-2.0"
    assert meta["Requires-Python"] == ">=3.10"
    assert "attnroute = attnroute.cli.main:main" in scripts


def test_wheel_is_the_same_from_a_checkout_as_from_the_sdist(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (direct,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(direct) as other:
        assert set(one.namelist()) == set(other.namelist())
        assert one.read(DATA) == other.read(DATA)


def test_plan_from_the_wheel_never_imports_yaml(clean_venv: Path, tmp_path: Path) -> None:
    script = clean_venv / ("Scripts/attnroute.exe" if os.name == "nt" else "bin/attnroute")
    done = run(
        script, "plan", GEMMA, "--arch", "sm120", "--package", "flashinfer-python==0.6.16.post3", "--format", "json",
        cwd=tmp_path, PYTHONPROFILEIMPORTTIME="1",
    )  # fmt: skip
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "attnroute.cli.main" in imported
    assert not {name for name in imported if name.partition(".")[0] in HEAVY}
    plan = json.loads(done.stdout)
    decode = {group["phases"]["decode"]["kernel"] for group in plan["groups"]}
    assert decode == {"xqa", "native_tc"}


def test_the_probe_of_a_wheel_finds_its_tolerances(clean_venv: Path, tmp_path: Path) -> None:
    ask = "from attnroute.probe.tolerance import load_tolerances, probe_data as d; r = load_tolerances(); "
    ask += "print(len(r.rules), r.lse, r.key_tiles['fa4'][256], 'undecidable' in d('untestable.yaml'))"
    installed = run(venv_python(clean_venv), "-c", ask, cwd=tmp_path)
    assert installed.stdout == run(sys.executable, "-c", ask, cwd=ROOT).stdout
    assert installed.stdout.endswith("0.02 (64, 80) True\n")


def test_wheel_answers_like_the_checkout(clean_venv: Path, tmp_path: Path) -> None:
    question = [
        "explain",
        "--arch",
        "sm90",
        "--head-dim",
        "128",
        "--q-heads",
        "16",
        "--kv-heads",
        "2",
        "--format",
        "json",
    ]
    ask = "import sys; from attnroute.cli.main import main; sys.exit(main())"
    installed = run(venv_python(clean_venv), "-c", ask, *question, cwd=tmp_path)
    checkout = run(sys.executable, "-c", ask, *question, cwd=ROOT)
    assert json.loads(installed.stdout) == json.loads(checkout.stdout)


def test_overlays_are_validated_against_the_wheel(clean_venv: Path, tmp_path: Path) -> None:
    """What repositories with overlays use through pre-commit: schemas and base tables come from the wheel."""
    ask = "import sys; from attnroute.cli.main import main; sys.exit(main())"
    table = tmp_path / "overlay" / "arch" / "sm120.yaml"
    table.parent.mkdir(parents=True)
    text = 'arch: sm120\nname: Ours\ncompute_capability: "12.0"\nkernels:\n  triton: []\n'
    table.write_text(text)
    python = venv_python(clean_venv)
    run(python, "-c", ask, "validate", "overlay", cwd=tmp_path)
    table.write_text(text.replace("triton", "tritom"))
    command = [str(python), "-c", ask, "validate", "overlay"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "sm120.yaml:5:3:" in done.stdout + done.stderr
    assert "triton" in done.stdout + done.stderr


def test_wheel_is_imported_from_its_environment(clean_venv: Path, tmp_path: Path) -> None:
    done = run(venv_python(clean_venv), "-c", "import attnroute; print(attnroute.__file__)", cwd=tmp_path)
    assert Path(done.stdout.strip()).is_relative_to(clean_venv)


def test_a_broken_table_stops_the_build_with_its_position(tmp_path: Path) -> None:
    """The build says file and line, not a traceback through the build backend."""
    import shutil

    source = tmp_path / "source"
    for name in ("attnroute", "capabilities"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "_data"))
    for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    table = source / "capabilities" / "arch" / "sm120.yaml"
    table.write_text(table.read_text().replace("\nkernels:\n", "\nkernles:\n", 1))
    command = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "out"),
        str(source),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "sm120.yaml:" in said
    assert "kernles" in said
