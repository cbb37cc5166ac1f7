"""Read the code blocks of the documentation. CONTRIBUTING.md has the rules that each one follows."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
)

TEXT = {"diff", "text"}
"""Languages of blocks that are not checked: output, excerpts of logs, changes to a program."""

_FENCE = re.compile(
    r"(?:^(?P<mark_indent> *)<!-- test: (?P<mark>[^\n]+) -->\n)?"
    r"^(?P<indent> *)(?P<fence>```+) ?(?P<language>[\w-]*)(?P<options>[^\n]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)


class CodeBlock(NamedTuple):
    """A code block of a page.

    Attributes:
        line: Number of its first line of code.
        language: Language after the fence.
        code: Text without the indentation of the block.
        mark: Text of the comment `<!-- test: MARK -->` above the block; "" without one.
    """

    line: int
    language: str
    code: str
    mark: str

    @property
    def skipped(self) -> bool:
        """Whether the code is only parsed."""
        return bool(self.mark)


def read_blocks(markdown: str) -> Iterator[CodeBlock]:
    """Yield the code blocks of a page. A block that consists of an included file is left out.

    Raises:
        ValueError: A mark is neither "cluster" nor "skip, REASON".
    """
    for match in _FENCE.finditer(markdown):
        mark = match["mark"] or ""
        line = markdown.count("\n", 0, match.start("code")) + 1
        if mark and mark != "cluster" and not re.match("skip, .+", mark):
            raise ValueError(f"line {line}: the mark {mark!r} is neither 'cluster' nor 'skip, REASON'")
        code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        if not code.startswith("--8<--"):
            yield CodeBlock(line, match["language"], code, mark)


def included_files(markdown: str) -> list[str]:
    """Return the files of the repository that a page includes."""
    return re.findall(r'^ *--8<-- "([^":]+)', markdown, re.MULTILINE)


def as_program(blocks: list[CodeBlock]) -> str:
    """Return blocks as one program. Each line of code has the number that it has on the page."""
    lines: list[str] = []
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.code.splitlines()
    return "\n".join(lines) + "\n"


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell script, without assignments before it and redirections after it."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("();<>|&"):
                while words and re.match(r"\w+=|\$$", words[0]):
                    del words[0]
                if words:
                    yield words
                words = []
            else:
                words.append(word)
