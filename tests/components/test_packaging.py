"""What a step carries: its modules without comments, the same bytes for the same sources."""

import ast
import importlib.util
import random
from pathlib import Path

import pyppmd
import pytest

from kfp_distributed.components.packaging import (
    Delivery,
    cache_folder,
    imported_modules,
    make_step,
    pack,
    read_modules,
    unpack,
)


@pytest.mark.parametrize("name", ["kfp_distributed.components.train.step", "kfp_distributed.trainers.runtime.entry"])
def test_what_travels_defines_the_same_names(name):
    def public_names(source: str) -> list[str]:
        definitions = (ast.FunctionDef, ast.ClassDef)
        top = [node for node in ast.parse(source).body if isinstance(node, definitions)]
        members = [each for node in top if isinstance(node, ast.ClassDef) for each in node.body]
        return [node.name for node in [*top, *members] if isinstance(node, definitions)]

    sources = read_modules([name])
    assert len(sources) > 10
    for path, text in sources.items():
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        if text:
            original = Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8")
            assert public_names(text) == public_names(original), path
            assert len(text) < len(original)


def test_a_trainer_keeps_the_annotations_that_its_parameters_are_checked_by():
    name = "kfp_distributed.trainers.keras_classifier"
    path = "kfp_distributed/trainers/keras_classifier.py"
    assert "epochs:int" in read_modules([], [name])[path]
    assert "epochs:int" not in read_modules([name])[path]


def test_a_step_carries_what_its_modules_import_and_nothing_else():
    paths = list(read_modules(["kfp_distributed.storage.uri"]))
    assert paths == ["kfp_distributed/storage/__init__.py", "kfp_distributed/storage/uri.py"]
    carried = read_modules(["kfp_distributed.components.export_model.export"])
    assert "kfp_distributed/storage/s3.py" in carried
    assert carried["kfp_distributed/components/__init__.py"] == ""
    assert not [path for path in carried if "trainers" in path or path.endswith("component.py")]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import os\nfrom pathlib import Path\n", []),
        ("from kfp_distributed.storage.uri import join_uri", ["kfp_distributed.storage.uri"]),
        ("def f():\n    from kfp_distributed.storage import uri", ["kfp_distributed.storage.uri"]),
        ("import kfp_distributed.storage.uri as u", ["kfp_distributed.storage.uri"]),
        ("from kfp_distributed.storage import join_uri", ["kfp_distributed.storage"]),
    ],
)
def test_imports_are_found_wherever_they_stand(source, expected):
    assert imported_modules(source) == expected


def test_an_unknown_module_is_named():
    with pytest.raises(ModuleNotFoundError, match=r"kfp_distributed\.storage\.nothing"):
        read_modules(["kfp_distributed.storage.nothing"])


def test_packing_keeps_every_character_and_uses_none_that_kfp_or_argo_would_read():
    sources = {f"{number}.py": f"x = 'é{number * 7919}'\n" for number in range(500)}
    packed = pack(sources)
    assert unpack(packed) == sources
    assert not set(packed) & set("{}$&<>\\\"' ")


def test_a_text_that_pyppmd_cannot_unpack_is_packed_in_another_order():
    draw = random.Random(26)  # Of the first 60 seeds the only one whose archive is refused.
    words = ["".join(draw.choices("abcdefghij_( \n", k=draw.randrange(2, 20))) for _ in range(5000)]
    sources = {f"{number}.py": "".join(draw.choices(words, k=2000)) for number in range(8)}
    text = "\0".join(part for item in sources.items() for part in item).encode()
    with pytest.raises(ValueError, match="Corrupted"):
        pyppmd.decompress(pyppmd.compress(text, max_order=16, mem_size=1 << 24), max_order=16, mem_size=1 << 24)
    assert unpack(pack(sources)) == sources


def test_image_and_package_exclude_each_other():
    with pytest.raises(ValueError, match=r"image='i' and package='p' are both given"):
        Delivery(image="i", package="p")


def say(what: str):
    from kfp_distributed.storage.uri import parse_uri

    print(parse_uri(what))


def command_of(step):
    return step.component_spec.implementation.container.command[-1]


def test_what_was_packed_once_is_taken_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = command_of(make_step(say, packages=(), delivery=Delivery()))
    (kept,) = cache_folder().iterdir()
    archive = kept.read_text()
    assert unpack(archive).keys() == {"kfp_distributed/storage/__init__.py", "kfp_distributed/storage/uri.py"}
    assert archive in first
    assert command_of(make_step(say, packages=(), delivery=Delivery())) == first
    kept.write_text("taken")
    assert "taken" in command_of(make_step(say, packages=(), delivery=Delivery()))
    assert [each.name for each in cache_folder().iterdir()] == [kept.name]


def test_where_nothing_can_be_cached_everything_is_packed_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    step = make_step(say, packages=(), delivery=Delivery())
    assert pack(read_modules(["kfp_distributed.storage.uri"]))[:20] in command_of(step)
