"""What a browser makes of a page, as far as the tests of pages ask."""

from __future__ import annotations

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "wbr"}


class Reader(HTMLParser):
    """What a browser would make of the page, as far as the tests ask."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.seen: list[str] = []
        self.broken = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        self.broken = tag == "wbr"

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.broken and self.seen:
            # A place where a long word may go on in the next line parts no words.
            self.seen[-1] += data
        elif not {"style", "script"} & set(self.open):
            self.seen.append(data)
        self.broken = False

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.seen).split())

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] or "" for _, attributes in self.tags if name in attributes]
