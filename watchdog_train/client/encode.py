"""JSON without the json module, which costs every Python start of the tree; it must not import."""


def encode(value):
    """A value of dicts, lists, tuples, strings, numbers, booleans and None as ASCII text.

    What JSON cannot say becomes null: not-a-number, infinities, and objects of other types.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value)) if value - value == 0 else "null"
    if isinstance(value, dict):
        pairs = [_text(str(key)) + ":" + encode(item) for key, item in value.items()]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([encode(item) for item in value]) + "]"
    return "null"


def _text(text):
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return '"' + text + '"'
    parts = []
    for character in text:
        number = ord(character)
        if number > 0xFFFF:
            number -= 0x10000
            parts.append("\\u%04x\\u%04x" % (0xD800 | number >> 10, 0xDC00 | number & 0x3FF))
        elif 31 < number < 127 and character not in '"\\':
            parts.append(character)
        else:
            parts.append("\\u%04x" % number)
    return '"' + "".join(parts) + '"'
