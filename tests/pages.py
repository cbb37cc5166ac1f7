"""Parse the HTML pages of steps."""

from html.parser import HTMLParser

_WITHOUT_END_TAG = {"meta", "br", "img"}


class Page(HTMLParser):
    """An HTML page. Parsing fails if an element is not closed.

    Attributes:
        tables: The tables. Each has rows, the header first, with the texts of the cells.
        texts: All visible texts, in order.
        elements: Tag and attributes of each element, in order.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in _WITHOUT_END_TAG:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "style" in self._open or not data.strip():
            return
        self.texts.append(data.strip())
        if self._open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of each element with this tag."""
        return [attributes for name, attributes in self.elements if name == tag]

    def table(self, last_column: str) -> list[dict[str, str]]:
        """Return the rows of the table whose last column has this name, as texts by column."""
        (table,) = [table for table in self.tables if table[0][-1] == last_column]
        return [dict(zip(table[0], row, strict=True)) for row in table[1:]]
