import pytest

from kfp_distributed.components.train.run.runners.lines import BAR_SECONDS, LONGEST_LINE, LineCutter


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"a\nb\n"], [["a", "b"]]),
        ([b"a", b"b", b"\nc"], [[], [], ["ab"]]),
        ([b"\n\na\n"], [["", "", "a"]]),
        ([b"a\r\nb\r", b"\nc\n"], [["a"], ["b", "c"]]),
        ([b"no newline", b""], [[], ["no newline"]]),
        ([b"ended\n", b""], [["ended"], []]),
        ([b"10%\r20%\rdone\n"], [["done"]]),
        ([b"\xff\xfe\n"], [["��"]]),
        # A character of three bytes in two chunks, and an incomplete one.
        (["€".encode()[:1], "€".encode()[1:] + b"\n"], [[], ["€"]]),
        (["€".encode()[:2], b""], [[], ["�"]]),
    ],
)
def test_output_is_split_into_lines(chunks, lines):
    cutter = LineCutter()
    assert [cutter.feed(chunk, 1.0) for chunk in chunks] == lines


def test_a_progress_bar_is_a_line_every_few_seconds_and_at_its_end():
    cutter = LineCutter()
    results = [cutter.feed(b"\r%d%%" % percent, 1.0 + percent) for percent in range(1, 15)]
    assert [line for lines in results for line in lines] == ["1%", "6%", "11%"]
    assert cutter.feed(b"\r\n", 2 + BAR_SECONDS) == ["14%"]


@pytest.mark.parametrize("chunk", [1000, LONGEST_LINE, 5 * LONGEST_LINE])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_long_line_is_split_without_loss(chunk, end):
    text = "".join(f"{number:07d}€" for number in range(30_000))
    data, cutter, pieces = text.encode() + end, LineCutter(), []
    for start in range(0, len(data), chunk):
        pieces += cutter.feed(data[start : start + chunk], 1.0)
    pieces += cutter.feed(b"", 1.0)
    assert "".join(pieces) == text
    assert [len(piece) for piece in pieces] == [65536, 65536, 65536, 43392]
