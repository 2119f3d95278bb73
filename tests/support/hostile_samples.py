"""Texts that try to act on the page that shows them."""

HOSTILE = "</script><img src=x onerror=alert(1)><!-- [red]x[/red] \x1b[2J\x00 \u202e &amp; ${1}"
