"""Load the vectors: each case with its reads as bytes and its record as values."""

import base64
import json
from functools import reduce
from operator import add


def reads(rules):
    for rule in rules:
        if isinstance(rule, str):
            yield rule.encode()
        elif "base64" in rule:
            yield base64.b64decode(rule["base64"])
        elif "every" in rule:
            data, size = rule["text"].encode(), rule["every"]
            yield from (data[start : start + size] for start in range(0, len(data), size))
        else:
            for number in range(rule["first"], rule["first"] + rule["times"]):
                yield rule["text"].replace("{n}", str(number)).encode()


def whole(value):
    if isinstance(value, list):
        return [whole(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    if "repeat" in value:
        return value["repeat"] * value["times"]
    if "join" in value:
        return reduce(add, (whole(part) for part in value["join"]))
    return {key: whole(entry) for key, entry in value.items()}


def load(path):
    with open(path, encoding="utf-8") as file:
        for case in json.load(file)["cases"]:
            yield {**case, "reads": reads(case["reads"]), "record": whole(case["record"])}
