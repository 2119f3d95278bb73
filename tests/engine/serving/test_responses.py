from rl4p.engine.serving.responses import encoded, event


def test_json_is_short_and_an_event_holds_it():
    assert encoded({"a": [1, None], "b": "é"}) == b'{"a":[1,null],"b":"\\u00e9"}'
    assert event({"a": "x\ny"}) == b'data: {"a":"x\\ny"}\n\n'
