"""Fixtures that open engines on doubles of both protocols."""

import pytest

from tests.support.remote_engines import IN_ORDER, engine_on


@pytest.fixture(params=IN_ORDER, scope="module")
def protocol(request):
    return request.param


@pytest.fixture
def opened(protocol, policy, params, tmp_path):
    def open_engine(count=1, **options):
        return engine_on(protocol, policy, params, count, tmp_path, **options)

    return open_engine
