"""Random JSON Schemas of what the schema compiler supports: the same seed gives the same schema.

Left out: what validators in Python decide otherwise than the standard (multipleOf of decimal fractions,
Unicode classes in patterns), and what is refused by rule (uniqueItems, unevaluated…)."""
import random

PATTERNS = ["^[a-z]{2,8}$", "^[A-Z][a-z]+( [A-Z][a-z]+)?$", "^\\d{3}-\\d{4}$", "^(yes|no|maybe)$",
            "^[a-zA-Z0-9_-]{1,24}$", "ab", "^x", "z$", "^#[0-9a-f]{6}$", "^[^\"\\\\]{0,12}$"]
FORMATS = ["date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname"]
WORDS = ["name", "id", "age", "tags", "kind", "value", "items", "note", "x", "y", "a b", "é", "n\"q"]
VALUES = [None, True, False, 0, 1, -7, 2.5, "", "red", "green", "tab\tquote\"", "日本", [1, "a"], {"k": 1}]


def integer(r):
    s = {"type": "integer"}
    lo = r.randint(-300, 300)
    if r.random() < .5:
        s[r.choice(["minimum", "exclusiveMinimum"])] = lo
    if r.random() < .5:
        s[r.choice(["maximum", "exclusiveMaximum"])] = lo + r.choice([2, 9, 100, 12345])
    if r.random() < .2:
        s["multipleOf"] = r.choice([1, 2, 3, 7, 10])
        s.pop("maximum", 0), s.pop("exclusiveMaximum", 0)
    return s


def number(r):
    s = {"type": "number"}
    lo = r.choice([0, -1.5, 3.25, 100, -0.001])
    if r.random() < .5:
        s[r.choice(["minimum", "exclusiveMinimum"])] = lo
    if r.random() < .5:
        s[r.choice(["maximum", "exclusiveMaximum"])] = lo + r.choice([0.5, 1, 77.7])
    if r.random() < .1:
        s["multipleOf"] = r.choice([0.5, 0.25, 2])
        s.pop("maximum", 0), s.pop("exclusiveMaximum", 0)
    return s


def string(r):
    s = {"type": "string"}
    k = r.random()
    if k < .3:
        lo = r.choice([0, 0, 1, 3, 18])
        if lo:
            s["minLength"] = lo
        s["maxLength"] = lo + r.choice([0, 1, 5, 20, 60])
    elif k < .5:
        s["pattern"] = r.choice(PATTERNS)
        if r.random() < .3:
            s["maxLength"] = r.choice([8, 12, 40])
    elif k < .65:
        s["format"] = r.choice(FORMATS)
    else:
        s["maxLength"] = r.choice([10, 40])
    return s


def array(r, depth, defs):
    s = {"type": "array"}
    if r.random() < .25:
        s["prefixItems"] = [schema(r, depth - 1, defs) for _ in range(r.randint(1, 3))]
        s["items"] = r.choice([False, schema(r, depth - 1, defs)])
    else:
        s["items"] = schema(r, depth - 1, defs)
    if r.random() < .5:
        s["minItems"] = r.randint(0, 2)
    s["maxItems"] = s.get("minItems", 0) + r.randint(0, 3)
    if s.get("items") is False:
        s["maxItems"] = min(s["maxItems"], len(s["prefixItems"]))
        s["minItems"] = min(s.get("minItems", 0), s["maxItems"])
    if r.random() < .1 and "prefixItems" not in s and s["maxItems"]:
        s["contains"] = {"const": r.choice([7, "seven"])}
        s["items"] = {"enum": [7, "seven", None, 1]}
    return s


def obj(r, depth, defs):
    names = r.sample(WORDS, r.randint(0, 4))
    s = {"type": "object", "properties": {n: schema(r, depth - 1, defs) for n in names}}
    s["required"] = [n for n in names if r.random() < .6]
    k = r.random()
    if k < .6:
        s["additionalProperties"] = False
    elif k < .8:
        s["additionalProperties"] = schema(r, 0, defs)
    if r.random() < .15:
        s["patternProperties"] = {"^p_": schema(r, 0, defs)}
    if r.random() < .15 and s.get("additionalProperties") is False and names:
        s["minProperties"] = r.randint(0, len(names))
        s["maxProperties"] = r.randint(max(s["minProperties"], len(s["required"])), len(names))
    if r.random() < .1 and len(names) > 1:
        s["dependentRequired"] = {names[0]: [names[1]]}
    if r.random() < .1 and names and s.get("additionalProperties") is False and "minProperties" not in s:
        s["if"] = {"required": [names[0]]}
        s["then"] = {"required": names[:2]}
    return s


def choice(r, depth, defs):
    k = r.random()
    if k < .4:
        return {"anyOf": [schema(r, depth - 1, defs) for _ in range(r.randint(2, 3))]}
    if k < .6:
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": t}, "v": schema(r, depth - 1, defs)},
                           "required": ["kind", "v"], "additionalProperties": False} for t in ("a", "b", "c")]}
    if k < .7:
        return {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 5}]}
    if k < .8:
        return {"allOf": [{"type": "string", "maxLength": 20}, {"pattern": r.choice(PATTERNS)}]}
    if k < .9:
        return {"type": "string", "maxLength": 9, "not": {"enum": ["red", ""]}}
    return {"type": r.sample(["integer", "string", "null", "boolean", "array"], 2), "maxLength": 9, "maxItems": 1}


def schema(r, depth, defs):
    k = r.random()
    if depth > 0 and k < .35:
        return obj(r, depth, defs)
    if depth > 0 and k < .5:
        return array(r, depth, defs)
    if depth > 0 and k < .6:
        return choice(r, depth, defs)
    if defs and k < .66:
        return {"$ref": "#/$defs/" + r.choice(list(defs))}
    if k < .72:
        return {"enum": r.sample(VALUES, r.randint(1, 5))}
    if k < .75:
        return {"const": r.choice(VALUES)}
    if k < .78:
        return {"type": "boolean"}
    if k < .8:
        return {"type": "null"}
    return r.choice([integer, number, string, string])(r)


def make(seed):
    r = random.Random(seed)
    defs = {}
    if r.random() < .3:
        defs["leaf"] = schema(r, 1, {})
    if r.random() < .2:  # a tree
        defs["node"] = {"type": "object", "properties": {
            "v": schema(r, 0, {}), "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "required": ["v", "next"], "additionalProperties": False}
    s = r.choice([obj, obj, obj, array])(r, 3, defs)
    if defs:
        s["$defs"] = defs
    return s
