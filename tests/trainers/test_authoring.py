"""What a function means to the replicas that receive its source, and where it is loaded."""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kfp_distributed.trainers import parse_program, train_specification
from kfp_distributed.trainers.programs.function_source import constant_key, unindent
from kfp_distributed.trainers.runtime.entry import load_function

NUMBERS = itertools.count()
NEW_SYNTAX = pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters need Python 3.12")


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Load a module from its text."""
    monkeypatch.chdir(tmp_path)

    def load_module(text):
        name = f"module_{next(NUMBERS)}"
        file = tmp_path / f"{name}.py"
        file.write_text(textwrap.dedent(text).lstrip("\n"))
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load_module


def in_replica(function):
    """Return the function as a replica has it."""
    return load_function(parse_program(json.dumps(train_specification(function))))


BINDINGS = [
    ("from numpy import sum", "sum", "numpy.sum"),
    ("from numpy import *", "sum", "numpy.sum"),
    ("import json as sum", "sum", "module json"),
    ("sum = 3", "sum", "an object of type int"),
    ("def sum(values): pass", "sum", "{module}.sum"),
    ("class sum: pass", "sum", "{module}.sum"),
    ("from fractions import Fraction\nsum = Fraction(1)", "sum", "an object of type fractions.Fraction"),
    ("__doc__ = 'Text.'", "__doc__", "an object of type str"),
    ("", "__spec__", "an object of type _frozen_importlib.ModuleSpec"),
    ("from numpy import sum\ndel sum", "total", "not defined"),
]


@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize(("binding", "name", "bound"), BINDINGS)
def test_a_name_that_the_module_binds_is_refused(load, binding, name, bound, order):
    parts = [binding, f"def fit(model_dir):\n    return {name}"]
    module = load("\n".join(parts if order == "before" else reversed(parts)))
    with pytest.raises(ValueError, match=re.escape(f"fit() uses {name} of its module")) as refusal:
        train_specification(module.fit)
    assert f"{name} ({bound.format(module=module.__name__)})" in str(refusal.value)


@pytest.mark.parametrize(
    "body",
    [
        "return [sum(row) for row in model_dir]",
        "return (lambda rows: sum(rows))(model_dir)",
        "return lambda rows=sum: rows",
        "def inner(rows=sum): pass",
        "def inner(*, rows=sum): pass",
        "@sum\ndef inner(): pass",
        "@sum\nclass Inner: pass",
        "class Inner(sum): pass",
        "class Inner(metaclass=sum): pass",
        "class Inner:\n    total = sum",
        "class Inner:\n    sum = sum",
        "class Inner:\n    if model_dir:\n        sum = 1\n    total = sum",
        "class Inner:\n    try:\n        import sum\n    except ImportError:\n        pass\n    total = sum",
        "class Inner:\n    sum = 1\n    total = [sum for _ in 'ab']",
        "class Inner:\n    sum = 1\n    def total(self):\n        return sum",
        "class Inner:\n    sum = 1\n    del sum\n    total = sum",
        "global sum\nif model_dir:\n    sum = max\nreturn sum",
        "global sum\nfor sum in model_dir: pass\nreturn sum",
        "global sum\ntry:\n    sum = open(model_dir)\nexcept OSError: pass\nreturn sum",
        "global sum\nsum += 1",
        "global sum\ndel sum",
        "def inner():\n    global sum\n    sum = max\nreturn sum",
        "async def inner():\n    async for _ in sum: pass",
        "assert sum",
        "try:\n    pass\nexcept sum:\n    pass",
        "return f'{sum}'",
        "match model_dir:\n    case sum.a: pass",
        pytest.param("def inner[T](rows: T) -> T: return sum", marks=NEW_SYNTAX),
        pytest.param("class Inner[T]:\n    total = sum", marks=NEW_SYNTAX),
    ],
)
def test_a_name_of_the_module_is_refused_in_each_scope(load, body):
    module = load(f"from numpy import sum\ndef fit(model_dir):\n{textwrap.indent(body, '    ')}\n")
    with pytest.raises(ValueError, match=r"fit\(\) uses sum of its module.* sum \(numpy\.sum\)"):
        train_specification(module.fit)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("sum = sum\ndef fit(model_dir): return sum([1, 2])", 3),
        (
            "from builtins import *\nfrom io import open\ndef fit(model_dir): return max(1, 2), open.__name__",
            (2, "open"),
        ),
        ("from numpy import sum\ndel sum\ndef fit(model_dir): return sum([1, 2])", 3),
        ("from numpy import sum\ndef fit(model_dir, sum=3): return sum", 3),
        ("from numpy import sum\ndef fit(model_dir):\n    sum = 3\n    return [sum for _ in 'ab']", [3, 3]),
        ("from numpy import sum\ndef fit(model_dir):\n    from builtins import sum\n    return sum([1, 2])", 3),
        ("from numpy import sum\ndef fit(model_dir: sum) -> sum:\n    n: sum = 3\n    return n", 3),
        ("from numpy import sum\ndef fit(model_dir):\n    def inner(n: sum) -> sum: return n\n    return inner(3)", 3),
        ("from numpy import sum\ndef fit(model_dir): return {'sum': 3}['sum']", 3),
        ("from numpy import sum\ndef fit(model_dir): return [sum for sum in 'ab']", ["a", "b"]),
        ("x: int = 1\ndef fit(model_dir):\n    class Inner:\n        y: int = 3\n    return Inner.y", 3),
        ("x = 1\ndef fit(model_dir):\n    class Inner:\n        x = 3\n        y = x\n    return Inner.y", 3),
        (
            "x = 1\ndef fit(model_dir):\n    global x\n    x = 3\n    return [x for _ in 'ab'], (lambda: x)()",
            ([3, 3], 3),
        ),
        ("def fit(model_dir):\n    global y\n    for y in 'ab': pass\n    return y", "b"),
        ("def fit(model_dir):\n    def make():\n        global z\n        z = 3\n    make()\n    return z", 3),
        ("def fit(model_dir, n=3): return n and [n, *fit(model_dir, n - 1)] if n else []", [3, 2, 1]),
        pytest.param("def fit[T](model_dir: T):\n    class A[S]: x = 3\n    return A.x", 3, marks=NEW_SYNTAX),
        ("def fit(model_dir): return bool(__file__ and __name__ and __builtins__)", True),
        ("def fit(model_dir, n=1024 * 4, *, names=('a', -1), on=True): return n, names, on", (4096, ("a", -1), True)),
    ],
)
def test_a_name_that_means_the_same_is_accepted(load, text, result):
    module = load(text)
    replica = in_replica(module.fit)
    assert (module.fit(""), replica("")) == (result, result)


def with_asserts(model_dir):
    assert len(model_dir) * 2 in (2, 2 * 2), """
    two"""
    assert model_dir != 1
    return model_dir


def test_asserts_that_pytest_changes_are_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert with_asserts.__code__.co_names != in_replica(with_asserts).__code__.co_names
    assert in_replica(with_asserts)("ab") == "ab"


def test_a_function_that_calls_what_replaced_it_is_refused(load):
    module = load("def fit(model_dir): return fit\noriginal, fit = fit, max")
    with pytest.raises(ValueError, match=r"uses fit of its module.* fit \(builtins\.max\)"):
        train_specification(module.original)
    module = load("def fit(model_dir): return fit\noriginal = fit\ndel fit")
    with pytest.raises(ValueError, match=r"uses fit of its module.* fit \(not defined\)"):
        train_specification(module.original)
    module = load("def fit(model_dir): return 3\noriginal, fit = fit, max")
    assert in_replica(module.original)("") == 3


def test_a_function_of_ipython_may_open_files(tmp_path):
    """IPython binds `open` to its own wrapper of the builtin."""
    code = """
def fit(model_dir):
    return open(model_dir)

from kfp_distributed.trainers import train_specification
print(type(open).__name__, train_specification(fit)["function"])
def fit(model_dir):
    return get_ipython()

try:
    train_specification(fit)
except ValueError as error:
    print(str(error).partition(" of its")[0])
"""
    argv = [sys.executable, "-m", "IPython", "--HistoryManager.enabled=False", "--quick", "-c", code]
    environment = {**os.environ, "IPYTHONDIR": str(tmp_path)}
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.stdout.splitlines()[:2] == ["function fit", "fit() uses get_ipython"], ended


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "fit.__defaults__ = (6,)",
            "the default of n is 5 in the source, which is sent to the job, and 6 in the loaded",
        ),
        ("fit.__defaults__ = (5.0,)", "the default of n is 5 in the source, which is sent to the job, and 5.0 in the"),
        (
            "fit.__defaults__ = (True,)",
            "the default of n is 5 in the source, which is sent to the job, and True in the",
        ),
        (
            "fit.__defaults__ = None",
            "the default of n is 5 in the source, which is sent to the job, and missing in the",
        ),
        ("fit.__defaults__ = ('/model', 5)", "the default of model_dir is missing in the source, which is sent to the"),
        (
            "fit.__kwdefaults__ = {'units': [8, 9]}",
            "the default of units is [8] in the source, which is sent to the job",
        ),
        (
            "fit.__kwdefaults__['units'].append(9)",
            "the default of units is [8] in the source, which is sent to the job",
        ),
        (
            "fit.__kwdefaults__['rate'] = 1",
            "the default of rate is missing in the source, which is sent to the job, and 1",
        ),
    ],
)
def test_a_changed_default_is_refused(load, change, reason):
    module = load(f"def fit(model_dir, n=5, *, rate, units=[8]): pass\n{change}")
    with pytest.raises(ValueError, match=re.escape(f"fit(): {reason}")):
        train_specification(module.fit)


@pytest.mark.parametrize("default", ["max(1, 2)", "EPOCHS", "sum"])
def test_a_default_that_is_not_constant_is_refused(load, default):
    module = load(f"from numpy import sum\nEPOCHS = 5\ndef fit(model_dir, n={default}): pass")
    with pytest.raises(ValueError, match=re.escape(f"fit(): the default of n is {default} (")):
        train_specification(module.fit)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n + 1", "n - 1"),
        ("n + 1", "n + 2"),
        ("abs(n)", "n"),
        ("n", "abs(n)"),
        ("n.a", "n.b"),
        ("[n for _ in '']", "n"),
    ],
)
def test_a_file_that_was_edited_after_the_import_is_refused(load, tmp_path, before, after):
    module = load(f"def fit(model_dir, n=1): return {before}")
    train_specification(module.fit)
    (tmp_path / f"{module.__name__}.py").write_text(f"def fit(model_dir, n=1): return {after}  # edited\n")
    with pytest.raises(ValueError, match=r"the source of fit\(\) in \S+ differs from the loaded function"):
        train_specification(module.fit)


CLASS = """
def fit(model_dir):
    class Sizes:
        first, second, third = 2, 3, {third}

        def __init__(self):
            self.width, self.height, self.depth, self.length = 1, 2, 3, 4

    return Sizes.third
"""


@pytest.mark.parametrize("lines", range(5))
def test_a_class_in_a_function_may_be_at_any_line(load, tmp_path, lines):
    """From Python 3.13 on a class has its line, which may be one of its other constants too."""
    above = "# A comment.\n" * lines
    module = load(above + CLASS.format(third=4).lstrip())
    assert in_replica(module.fit)("") == 4
    (tmp_path / f"{module.__name__}.py").write_text(above + CLASS.format(third=5).lstrip())
    with pytest.raises(ValueError, match="differs from the loaded function"):
        train_specification(module.fit)


def test_the_code_of_a_class_may_be_from_another_process(tmp_path):
    """Python 3.13 compiles the names of a class's attributes in the order of a set, which differs between processes."""
    (tmp_path / "sizes.py").write_text(CLASS.format(third=4))
    program = "import sizes, kfp_distributed.trainers as trainers; trainers.train_specification(sizes.fit)"
    for seed in "0123":  # The first process writes the compiled module, and the others read it.
        variables = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONDONTWRITEBYTECODE": ""}
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=variables, check=True)
    assert len([*tmp_path.rglob("sizes.*.pyc")]) == 1


def test_a_file_that_is_no_longer_valid_is_refused(load, tmp_path):
    text = "if True:\n    def fit(model_dir):\n        return {}\n"
    module = load(text.format("'3'"))
    (tmp_path / f"{module.__name__}.py").write_text(text.format('""" 3'))
    with pytest.raises(ValueError, match="the source of fit is not valid Python"):
        train_specification(module.fit)


MARGIN = r'''
def make():
        def fit(model_dir, text="""a
          b
   c"""):
            """Fits.

            With text.
            """
# A comment at the margin.
            import json
            plain = """
at the margin
            indented<spaces>
<spaces>
        less"""
            formatted = f"""
            {model_dir + 'inner'} and
            {len(
        plain)
            =}
            {json.dumps("a")
    }"""
            continued = "a\
            b" + \
    'c'
            raw = rb"""\
            d""", (
  1,
"e", [
        2]
        )

            class Model:
                """Model
                of it."""
                names = """
                x"""

                def call(self):
                    return json.dumps([text for _ in range(2)])

            return plain, formatted, continued, raw, Model.__doc__, Model.names, Model().call()
        return fit
fit = make()
'''.replace("<spaces>", " \t  ")


@pytest.mark.parametrize("indentation", ["    ", "\t", " ", "            "])
def test_strings_of_a_nested_function_keep_their_content(load, indentation):
    module = load(re.sub("^ {8}", indentation, MARGIN, flags=re.MULTILINE))
    replica = in_replica(module.fit)
    assert train_specification(module.fit)["source"].startswith("def fit(model_dir, text=")
    assert replica("/model") == module.fit("/model")
    assert (replica.__doc__, replica.__defaults__) == (module.fit.__doc__, module.fit.__defaults__)
    assert constant_key(replica.__code__) == constant_key(module.fit.__code__)


CONTENT = st.text(st.sampled_from(" \t\nab{}#()'\\"), max_size=30)
LINES = st.one_of(
    st.builds("text = {!r}".format, CONTENT),
    st.builds('text = """{}"""'.format, CONTENT.filter(lambda text: "\\" not in text)),
    st.builds("text = f'''{}{{len(\n  text)}}{}'''".format, *[st.text(st.sampled_from(" \t\nab"), max_size=20)] * 2),
    st.builds("text = [\n{}'{}',\n]".format, st.text(" \t", max_size=9), st.text("ab", max_size=3)),
    st.builds("text = 1 + \\\n{}2".format, st.text(" \t", max_size=9)),
    st.builds("if text:\n        text = '''{}'''".format, st.text(" \t\n#a", max_size=20)),
    st.builds("pass\n{}# {}".format, st.text(" ", max_size=9), st.text("ab", max_size=3)),
)


@settings(max_examples=200)
@given(lines=st.lists(LINES, min_size=1, max_size=4))
def test_any_source_without_indentation_compiles_to_the_same_code(lines):
    source = "    def fit(text):\n" + "".join(f"      {line}\n" for line in lines)
    functions = []
    for text in ("if True:\n" + source, unindent(source)):
        names = {}
        exec(text, names)
        functions.append(names["fit"].__code__)
    assert constant_key(functions[0]) == constant_key(functions[1])
    assert unindent(source).startswith("def fit(")
