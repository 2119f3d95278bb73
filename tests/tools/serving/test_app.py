import re
from pathlib import Path


def test_every_endpoint_is_documented(run):
    async def call(client, app):
        return {path for _, path in app.routes}

    text = (Path(__file__).parents[3] / "docs/serving.md").read_text()
    aliases = {"/get_model_info"}  # of /model_info, for older clients
    own = text.partition("## Sampling with vLLM or SGLang")[0]  # the rest is on other servers
    named = set(re.findall(r"`(/[^` ]*)`", own))
    assert run(call) - aliases == named


def test_health_tells_what_the_server_does(ask, scheduler):
    assert ask("/health", method="GET") == {"status": "ready"}
    scheduler.pause("keep", 1)
    assert ask("/health", method="GET") == {"status": "paused"}
    assert "paused" in ask("/health_generate", method="GET", status=503)["error"]["message"]
    scheduler.broken = "half"
    assert ask("/health", method="GET", status=503) == {"status": "out of order: half"}


def test_health_generate_generates_a_token(ask, scheduler, monkeypatch):
    assert ask("/health_generate", method="GET") == {"status": "ready"}
    (work,) = scheduler.asked
    assert work.max_tokens == 1
    scheduler.holds = True
    monkeypatch.setattr("rl4p.tools.serving.app.HEALTH_SECONDS", 0.01)
    assert "No token" in ask("/health_generate", method="GET", status=503)["error"]["message"]
    assert len(scheduler.cancelled) == 1


def test_the_counts_in_the_format_of_prometheus(run, scheduler):
    scheduler.version = 'a"b\\c\nd'

    async def call(client, app):
        await client.post("/v1/completions", json={"prompt": "a"})
        await client.get("/nowhere")
        return await client.get("/metrics")

    answer = run(call)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    for line in lines:
        assert re.fullmatch(r"# TYPE \w+ \w+|\w+(\{.*\})? [\d.e+-]+", line), line
    assert "rl4p_tokens 12" in lines
    assert "rl4p_open_completions 0" in lines
    assert 'rl4p_http_requests_total{path="/v1/completions",status="200"} 1' in lines
    assert 'rl4p_http_requests_total{path="other",status="404"} 1' in lines
    assert 'rl4p_weights_info{version="a\\"b\\\\c\\nd"} 1' in lines
    assert "rl4p_paused 0" in lines
    assert len({x for x in lines if x.startswith("# TYPE")}) == len(
        [x for x in lines if x.startswith("# TYPE")]
    )


def test_the_page_shows_state_and_counts_and_escapes_names(ask, scheduler):
    scheduler.version = "<b>"
    text = ask("/", method="GET", name="<script>", source="a&b")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;" in text
    assert "a&amp;b" in text
    assert "<strong>ready</strong>" in text
    assert "<td>tokens</td><td>12</td>" in text
    scheduler.pause("keep", 1)
    assert "<strong>paused</strong>" in ask("/", method="GET")


def test_the_page_loads_nothing_from_elsewhere(ask):
    text = ask("/", method="GET")
    assert "src=" not in text
    assert re.findall(r'href="([^"]*)"', text) == ["metrics"]
