"""Laws of the house: who may import whom, where things stand, and what no tracked file may hold."""

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
ROOMS = ("lob", "store", "cuda_env", "policy", "sim", "cli")
MAY_IMPORT = {
    "lob": {"lob"},
    "store": {"lob", "store"},
    "cuda_env": {"lob", "cuda_env"},
    "policy": {"lob", "policy"},
    "sim": {"lob", "store", "cuda_env", "policy", "sim"},
    "cli": {"lob", "sim", "cli"},
}
SOURCES = [path for room in ROOMS for path in sorted((REPO / room).rglob("*.py"))]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.add(node.module or "")
    return found


def tracked() -> list[Path]:
    """Every file that git tracks or would."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=REPO, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [REPO / name for name in listed.stdout.split("\0") if name and (REPO / name).is_file()]


def test_rooms_import_only_what_the_house_allows():
    for path in SOURCES:
        room = path.relative_to(REPO).parts[0]
        foreign = {name.split(".")[0] for name in imports(path)} & {*ROOMS, "tests", "benchmarks", "examples"}
        assert foreign <= MAY_IMPORT[room], f"{path.relative_to(REPO)} imports {sorted(foreign - MAY_IMPORT[room])}"


def test_numba_is_imported_through_one_module():
    users = {str(path.relative_to(REPO)) for path in SOURCES if any(name.split(".")[0] == "numba" for name in imports(path))}
    assert users == {"lob/jit.py"}


def test_the_ground_imports_nothing_that_reads_or_writes():
    doing_io = {"duckdb", "pyarrow", "sqlite3", "socket", "urllib", "requests", "zstandard", "typer", "rich"}
    for path in SOURCES:
        if path.parent.name == "lob":
            assert not {name.split(".")[0] for name in imports(path)} & doing_io, path


def test_every_room_is_a_package_with_an_empty_init():
    for room in ROOMS:
        assert (REPO / room / "__init__.py").read_bytes() == b""
        assert not [path for path in (REPO / room).rglob("*/") if path.is_dir() and path.name != "__pycache__"], (
            f"{room} has a package inside"
        )


def test_the_wheel_ships_the_six_packages_and_nothing_else():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["packages"] == list(ROOMS)
    assert project["project"]["scripts"] == {"sim": "cli.main:main"}


EXTRAS = {"sim/gymnasium_env.py": "gym", "sim/sb3_env.py": "gym", "sim/torchrl_env.py": "torchrl"}
"""Files that need an extra: others' ecosystems, which the house itself does without."""


def distributions(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", line)[0] for line in requirements}


def test_what_is_imported_is_declared_as_a_dependency():
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    declared = distributions(project["dependencies"])
    pinned = {line.split("==")[0] for line in (REPO / "constraints.txt").read_text().splitlines() if line}
    assert declared <= pinned, f"not pinned: {sorted(declared - pinned)}"
    for path in SOURCES:
        name = path.relative_to(REPO).as_posix()
        of_extra = distributions(project["optional-dependencies"][EXTRAS[name]]) if name in EXTRAS else set()
        assert of_extra <= pinned, f"not pinned: {sorted(of_extra - pinned)}"
        used = {module.split(".")[0] for module in imports(path)} - {*ROOMS, ""} - set(sys.stdlib_module_names)
        foreign = {module.replace("_", "-") for module in used} - declared - of_extra
        assert not foreign, f"{name} imports what is not declared: {sorted(foreign)}"


def test_no_file_imports_one_that_needs_an_extra_except_for_the_same_extra():
    needing = {name.removesuffix(".py").replace("/", "."): extra for name, extra in EXTRAS.items()}
    for path in SOURCES:
        wanted = {needing[module] for module in imports(path) & set(needing)}
        assert wanted <= {EXTRAS.get(path.relative_to(REPO).as_posix())}, path


def test_the_tool_that_the_short_tests_compare_bars_with_is_installed_with_the_development_extras():
    """Its tests skip where it is absent; so that they are not skipped everywhere, `make setup` brings it."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    assert "backtesting" in {re.split(r"[<>=\[ ]", line)[0] for line in project["optional-dependencies"]["dev"]}


def test_a_file_stays_under_five_hundred_lines():
    long = {
        str(path.relative_to(REPO)): lines
        for path in tracked()
        if path.suffix == ".py" and (lines := len(path.read_text().splitlines())) > 500
    }
    assert not long


def test_no_switch_is_called_use_something():
    for path in SOURCES:
        names = {node.arg for node in ast.walk(tree(path)) if isinstance(node, ast.arg)}
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
        assert not [name for name in names if name.startswith("use_")], path


def test_no_tracked_file_names_a_machine_or_a_registry():
    paths = [rf"(?<![\w.]){prefix}" for prefix in ("/" + "root/", "/" + "work/", "/" + "home/", "/" + "Users/", "/" + "opt/", "/" + "mnt/")]
    hosts = ["index" + "-url", "py" + r"pi\.", "python" + "hosted", "arti" + "factory", r"\b(?:10|172|192)\.\d+\.\d+\.\d+\b"]
    pattern = re.compile("|".join(paths + hosts))
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            assert not pattern.search(line), f"{path.relative_to(REPO)}:{number}: {line.strip()[:100]}"


def declared_tables() -> list[tuple[str, Path]]:
    """(name, file) of every `Table("name", ...)` in the rooms."""
    return [
        (node.args[0].value, path)
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Table"
        if node.args and isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    ]


def test_each_log_table_is_declared_once_in_a_tables_file():
    tables = declared_tables()
    names = [name for name, _ in tables]
    assert len(set(names)) == len(names)
    assert {"steps", "orders", "fills", "trades"} <= set(names)
    for name, path in tables:
        assert "tables" in path.name, f"{name} is declared in {path.relative_to(REPO)}"


def test_market_record_layouts_are_declared_in_one_file():
    """A numpy layout that gives a market record's event time a width stands in `lob/records.py` alone."""
    layouts = [
        path.relative_to(REPO).as_posix()
        for path in SOURCES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Tuple) and len(node.elts) == 2 and all(isinstance(part, ast.Constant) for part in node.elts)
        if node.elts[0].value == "ts_event" and str(node.elts[1].value).lstrip("<>=").startswith(("u8", "i8"))
    ]
    assert layouts == ["lob/records.py"]


def test_money_columns_are_whole_micro_dollars():
    import importlib

    from lob.tables import Column

    checked = 0
    for path in sorted({path for _, path in declared_tables()} | {REPO / "policy" / "tables.py"}):
        module = importlib.import_module(".".join(path.relative_to(REPO).with_suffix("").parts))
        for value in vars(module).values():
            for column in [*getattr(value, "columns", ()), *(value if isinstance(value, tuple) else ())]:
                if isinstance(column, Column) and "usd" in column.name:
                    checked += 1
                    assert column.dtype == "int64", column
                    assert "_usd_micros" in column.name, column
    assert checked >= 10
    for name, dtype in (("pnl_usd", "int64"), ("pnl_usd_micros", "float64"), ("pnl_usd_micros", "int32")):
        with pytest.raises(ValueError, match="int64 micro-dollars"):
            Column(name, dtype, "usd_micros", "")


def test_a_house_whose_rooms_come_from_two_folders_refuses_to_start(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "__init__.py").write_text("")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPO)])}
    done = subprocess.run(
        [sys.executable, "-c", "from cli.main import main; main()", "--help"],
        cwd=tmp_path / "store",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: package store is found from {tmp_path.resolve()} and the others in {REPO}; ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_the_code_hash_changes_with_any_source(tmp_path):
    import shutil

    from sim import house

    copy = tmp_path / "house"
    for room in ROOMS:
        shutil.copytree(REPO / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    original = house.house_folder
    try:
        house.house_folder = lambda: copy
        before = house.code_hash()
        assert before == house.code_hash()
        with (copy / "lob" / "units.py").open("a") as file:
            file.write("\n")
        assert house.code_hash() != before
    finally:
        house.house_folder = original
