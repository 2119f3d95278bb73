"""A scheduler without a model, and the application in front of it."""

from tests.support.serving import ask, chatty, folders, make_server, run, scheduler, talk  # noqa: F401
