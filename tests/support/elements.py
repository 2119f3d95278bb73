"""The elements of an HTML page, as a browser reads them."""

from html.parser import HTMLParser

VOID = {"meta", "input", "br", "img"}


class Elements(HTMLParser):
    """The elements of a page with their attributes, its text, and the content of its scripts.

    Attributes:
      open: the elements that are not closed.
    """

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.scripts, self.open = [], "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
