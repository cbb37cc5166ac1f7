"""Warnings about labels, and labels of numbers in text form."""

from collections import Counter

import pytest

from kfp_distributed.components.prepare_data.report.label_warnings import label_warnings

PLAIN = 'set task to "regression"'
WRITE = 'write plain numbers (1.5) in all rows of the source, and set task to "regression"'


@pytest.mark.parametrize(
    ("classes", "beginning", "advice"),
    [
        (map(str, range(60)), "has 60 different numbers, such as '0': each becomes a class.", PLAIN),
        (map(str, range(2001, 2031)), "has 30 different numbers, such as '2001': each", PLAIN),
        ((str(10**power) for power in range(50)), "has 50 different numbers, such as '1': each", PLAIN),
        (map(str, range(-10, 10)), "has 20 different numbers, such as '-10': each", PLAIN),
        ((*map(str, range(2001, 2031)), "unknown"), "has 30 different numbers, such as '2001': each", WRITE),
        (("0.5", "1.5"), "has 2 different numbers, such as '0.5': each", PLAIN),
        (("0,5", "1,5"), "has 2 different numbers in text form, such as '0,5': each", WRITE),
        ((f"{number}%" for number in range(90)), "has 90 different numbers in text form, such as '0%'", WRITE),
        ((f"${number}" for number in range(9)), "has 9 different numbers in text form, such as '$0'", WRITE),
        (("7", "1,234", "5"), "has 3 different numbers in text form, such as '1,234'", WRITE),
    ],
    ids=["many", "years", "powers", "negative", "and a text", "fractions", "commas", "percent", "dollars", "thousands"],
)
def test_quantities_that_become_classes_are_named(classes, beginning, advice):
    (line,) = [line for line in label_warnings("y", Counter(classes)) if "has the class" not in line]
    assert line.startswith(f"label_column 'y' {beginning}")
    assert line.endswith(f"If they are quantities, {advice}")


@pytest.mark.parametrize(
    "classes",
    [
        map(str, range(59)),
        map(str, range(1, 48)),
        ("-1", "0", "1"),
        map(str, range(2001, 2020)),
        (f"word {number}" for number in range(100)),
        (f"{number:03}" for number in range(100)),
        ("5%", *"abcdef"),
        ("1st", "2nd", "3rd", "21st", "4th"),
        ("+", "-"),
        ("<", "=", ">"),
        (),
    ],
    ids=["from 0", "from 1", "signs", "a few", "words", "codes", "mostly texts", "ordinals", "+-", "<=>", "none"],
)
def test_usual_classes_have_no_warning(classes):
    assert label_warnings("y", Counter(classes)) == []


@pytest.mark.parametrize(
    ("classes", "odd"), [(("0", "1", "unknown"), "unknown"), (("yes", "no", "?"), "?"), (("2", "3.5", "-"), "-")]
)
def test_a_class_that_may_mean_a_missing_label_is_named(classes, odd):
    line = label_warnings("y", Counter(classes))[-1]
    assert line.startswith(f"label_column 'y' has the class {odd!r} beside classes of another form")
    assert 'set on_bad_row to "skip"' in line


@pytest.mark.parametrize(("value", "other"), [("Straße", "STRASSE"), ("Zürich", "ZÜRICH"), ("ﬁX", "ﬁx"), ("A", "a ")])
def test_classes_that_differ_only_in_case_are_shown_as_they_are(value, other):
    (line,) = label_warnings("y", dict.fromkeys((value, other, "b"), 5))
    assert line == (
        f"label_column 'y' has the classes '{value}' and '{other}', which differ only in case. If they are one class, "
        "write it in one way in the source"
    )


def test_spellings_of_one_class_are_named():
    lines = label_warnings("y", dict.fromkeys(("A", "a", "a ", "b"), 5))
    assert [line.split(", which")[0] for line in lines] == [
        "label_column 'y' has the classes 'A' and 'a'",
        "label_column 'y' has the classes 'A' and 'a '",
    ]
    assert len(label_warnings("y", Counter(f"{'A' * (i % 2)}{'a' * (1 - i % 2)}{i // 2}" for i in range(300)))) == 51


ALIKE = {
    "Unicode forms": ("Zürich", "Zu\u0308rich", r"'Z\xfcrich' and 'Zu\u0308rich'"),
    "zero width": ("Ulm", "Ulm\u200b", r"'Ulm' and 'Ulm\u200b'"),
    "byte order mark": ("Ulm", "\ufeffUlm", r"'Ulm' and '\ufeffUlm'"),
    "no-break space": ("New York", "New\u00a0York", r"'New York' and 'New\xa0York'"),
    "two blanks": ("New York", "New  York", "'New York' and 'New  York'"),
    "other white space": ("New York", "New \t York", r"'New York' and 'New \t York'"),
    "blanks of two kinds": ("Zürich 1", "Zürich \u20031", r"'Zürich 1' and 'Zürich \u20031'"),
    "control character": ("ab", "ab\x00", r"'ab' and 'ab\x00'"),
    "control character beside letters": ("Köln", "K\x8döln", r"'Köln' and 'K\x8döln'"),
    "ligature": ("fix", "\ufb01x", r"'fix' and '\ufb01x'"),
    "form and case": ("zürich", "Zu\u0308rich", r"'z\xfcrich' and 'Zu\u0308rich'"),
    "readable otherwise": ("北京", "北京\u200b", r"'北京' and '北京\u200b'"),
    "after many characters": (
        "a" * 40,
        "a" * 40 + "\u200b",
        "'…aaaaaaaaaaaaaaaaaaaa' and '…aaaaaaaaaaaaaaaaaaaa\\u200b'",
    ),
}


@pytest.mark.parametrize(("value", "other", "shown"), ALIKE.values(), ids=ALIKE)
def test_classes_categories_and_groups_that_look_alike_are_named(file, run, capsys, value, other, shown):
    rows = [
        f"{i},{[value, other, 'x'][i // 2 % 3]},{[value, other, *'vwxyz'][i % 7]},{[value, other][i % 2]}\n"
        for i in range(60)
    ]
    run(file("data.csv", "x,town,group,label\n" + "".join(rows)), group_column="group")
    log = capsys.readouterr().out
    beginnings = (
        "label_column 'label' has the classes",
        "column 'town' has the values",
        "group_column 'group' has the values",
    )
    for beginning in beginnings:
        (line,) = [line for line in log.splitlines() if line.startswith(f"warning: {beginning}")]
        values, _, rest = line.removeprefix(f"warning: {beginning} ").partition(
            ", which look alike: they differ in inv"
        )
        assert {*values.split(" and ")} == {*shown.split(" and ")}
        assert "write it in one way in the source" in rest


def test_a_value_that_looks_like_one_of_the_dataset_in_like_is_shown_with_it(file, run, capsys):
    text = "x,town,label\n" + "".join(f"{i},{['Zürich', 'Ulm'][i % 2]},{['é', 'b'][i % 2]}\n" for i in range(40))
    earlier = run(file("data.csv", text), "earlier")["train"]
    options = {"like": earlier, "validation_fraction": 0, "test_fraction": 1}
    run(file("new.csv", "x,town,label\n1,Rome,b\n2,Zu\u0308rich,b\n"), "new", **options)
    assert r"such as 'Zu\u0308rich' (a training row has 'Z\xfcrich'). No value" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"'label' is 'e\\u0301' \(a training row has '\\xe9'\), which is no class of"):
        run(file("new.csv", "x,town,label\n1,Ulm,e\u0301\n"), "other", **options)


def test_values_that_do_not_look_alike_have_no_line(file, run, capsys):
    names = ["Zürich", "Zurich", "New York", "NewYork", "a.b", "a-b", "1", "l"]
    groups = ["True", "TRUE", "5 Jan 2024", "05 jan 2024", *names]
    rows = [f"{i},{names[i % 8]},{groups[i % 12]},{names[i // 2 % 8]}\n" for i in range(160)]
    run(file("data.csv", "x,town,group,label\n" + "".join(rows)), group_column="group")
    log = capsys.readouterr().out
    assert "which differ" not in log
    assert "look alike" not in log


def labels_file(file, labels):
    return file("data.csv", "x,label\n" + "".join(f'{row},"{label}"\n' for row, label in enumerate(labels)))


@pytest.mark.parametrize("form", ["{}%", "${}", "{},234", "{}\u00a0234", "{}\u202f234", "{}\u2009234", "{}\u2019234"])
def test_labels_of_numbers_in_text_form_are_named(file, run, capsys, form):
    labels = [form.format(1 + row % 90) for row in range(360)]
    run(labels_file(file, labels))
    log = capsys.readouterr().out
    assert f"warning: label_column 'label' has 90 different numbers in text form, such as {min(labels)!r}" in log
    assert "task: classification" in log


def test_rare_labels_of_numbers_in_text_form_get_advice_for_quantities(file, run):
    with pytest.raises(ValueError, match=r"9 different numbers, 1 of .* in one row only .such as 9%.: .*plain numbers"):
        run(labels_file(file, [f"{1 + row % 8}%" for row in range(80)] + ["9%"]))
