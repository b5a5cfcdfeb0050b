/*
 * Finds plain frames, which need no closer look, in what a peer has sent: a part of _transfers.c.
 *
 * It does what amqp_ext.frames.plain.plain_frames does, with which the tests compare it. Nothing is read past a frame's
 * end, whatever size the frame claims for its parts.
 */

enum { UNSAID, SAID, WRONG };

struct reader {
    const uint8_t *at, *end;
    uint32_t left; /* fields */
};

/* The next octet of a field; -1 where there is none. */
static int
octet(struct reader *reader)
{
    return reader->at < reader->end ? *reader->at++ : -1;
}

/* A field's first octet; null after the last field. */
static int
constructor(struct reader *reader)
{
    if (reader->left == 0)
        return 0x40;
    reader->left--;
    return octet(reader);
}

static int
big_endian(struct reader *reader, int width, uint32_t *value)
{
    *value = 0;
    if (reader->end - reader->at < width)
        return WRONG;
    while (width-- > 0)
        *value = *value << 8 | *reader->at++;
    return SAID;
}

static int
number(struct reader *reader, uint32_t *value)
{
    switch (constructor(reader)) {
    case 0x40:
        return UNSAID;
    case 0x43:
        *value = 0;
        return SAID;
    case 0x52:
        return big_endian(reader, 1, value);
    case 0x70:
        return big_endian(reader, 4, value);
    default:
        return WRONG;
    }
}

static int
boolean(struct reader *reader, uint32_t *value)
{
    *value = 0;
    switch (constructor(reader)) {
    case 0x40:
        return UNSAID;
    case 0x41:
        *value = 1;
        return SAID;
    case 0x42:
        return SAID;
    default:
        return WRONG;
    }
}

static _Bool
is_null(struct reader *reader)
{
    return constructor(reader) == 0x40;
}

static _Bool
is_false(struct reader *reader)
{
    uint32_t value;

    return boolean(reader, &value) != WRONG && !value;
}

/* Reads the head of a list; the reader is at its first field then. */
static _Bool
list(struct reader *reader)
{
    uint32_t size;
    int form = octet(reader), width = form == 0xC0 ? 1 : 4;

    if ((form != 0xC0 && form != 0xD0) || big_endian(reader, width, &size) != SAID ||
        size > (size_t)(reader->end - reader->at) || size < (uint32_t)width)
        return 0;
    reader->end = reader->at + size;
    return big_endian(reader, width, &reader->left) == SAID;
}

static int
is_among(PyObject *set, uint64_t key)
{
    PyObject *number = PyLong_FromUnsignedLongLong(key);
    int is_there = number == NULL ? -1 : PySet_Contains(set, number);

    Py_XDECREF(number);
    return is_there;
}

static _Bool
is_outcome(struct reader *reader)
{
    switch (constructor(reader)) {
    case 0x40:
        return 1;
    case 0x00:
        break;
    default:
        return 0;
    }
    if (octet(reader) != 0x53)
        return 0;
    int code = octet(reader);
    return code >= 0x24 && code <= 0x26 && octet(reader) == 0x45;
}

static _Bool
is_plain_disposition(struct reader *reader)
{
    uint32_t role, first, last, settled;
    int has_last;

    if (!list(reader) || boolean(reader, &role) != SAID || !role || number(reader, &first) != SAID ||
        (has_last = number(reader, &last)) == WRONG || boolean(reader, &settled) == WRONG)
        return 0;
    return (has_last == UNSAID || (int32_t)(last - first) >= 0) && is_outcome(reader) &&
           boolean(reader, &settled) != WRONG && reader->left == 0 && reader->at == reader->end;
}

static _Bool
is_plain_transfer(struct reader *reader, _Bool continues, uint32_t next_id)
{
    uint32_t value, more, id;
    int has_id, has_format, form, size = 0;

    if (!list(reader) || number(reader, &value) != SAID || (has_id = number(reader, &id)) == WRONG)
        return 0;
    form = constructor(reader);
    if (form == 0xA0) {
        size = octet(reader);
        if (size < 0 || size > 32 || size > reader->end - reader->at)
            return 0;
        reader->at += size;
    } else if (form != 0x40) {
        return 0;
    }
    if ((has_format = number(reader, &value)) == WRONG || boolean(reader, &value) == WRONG ||
        boolean(reader, &more) == WRONG)
        return 0;
    if (continues ? has_format == SAID || !more : has_id == UNSAID || id != next_id || form == 0x40 || more)
        return 0;
    return is_null(reader) && is_null(reader) && is_false(reader) && is_false(reader) &&
           boolean(reader, &value) != WRONG && reader->left == 0 && reader->at == reader->end;
}

/* The next delivery-id of a channel; -1 where there is none, -2 where Python has failed. */
static int64_t
next_id_of(PyObject *next_ids, int32_t channel)
{
    PyObject *key = PyLong_FromLong(channel), *id = key == NULL ? NULL : PyDict_GetItemWithError(next_ids, key);
    int64_t value = id == NULL ? -1 : (int64_t)PyLong_AsUnsignedLong(id);

    Py_XDECREF(key);
    return PyErr_Occurred() ? -2 : value;
}

static int
keep_next_id(PyObject *next_ids, int32_t channel, uint32_t id)
{
    PyObject *key = PyLong_FromLong(channel), *value = PyLong_FromUnsignedLong(id);
    int result = key == NULL || value == NULL ? -1 : PyDict_SetItem(next_ids, key, value);

    Py_XDECREF(key);
    Py_XDECREF(value);
    return result;
}

PyDoc_STRVAR(plain_frames_doc, "plain_frames($module, data, position, begun, continued, next_ids, /)\n--\n\n"
                               "amqp_ext.frames.plain.plain_frames, in C.");

static PyObject *
plain_frames(PyObject *Py_UNUSED(module), PyObject *args)
{
    const uint8_t *data;
    Py_ssize_t position, end;
    PyObject *octets, *begun, *continued, *next_ids;
    uint64_t known = UINT64_MAX; /* Never a channel and handle: a channel has 16 bits. */
    PyObject *known_in = NULL;
    int32_t counted = -1; /* The channel of next_id. */
    int64_t next_id = -1;

    if (!PyArg_ParseTuple(args, "O!nO!O!O!:plain_frames", &PyBytes_Type, &octets, &position, &PySet_Type, &begun,
                          &PySet_Type, &continued, &PyDict_Type, &next_ids))
        return NULL;
    data = (const uint8_t *)PyBytes_AsString(octets);
    end = PyBytes_Size(octets);
    while (position >= 0 && end - position >= 11) {
        const uint8_t *frame = data + position;
        uint32_t size = (uint32_t)frame[0] << 24 | (uint32_t)frame[1] << 16 | (uint32_t)frame[2] << 8 | frame[3];
        struct reader reader;

        if (size < 11 || size > (size_t)(end - position) || frame[4] != 2 || frame[5] != 0 || frame[8] != 0x00 ||
            frame[9] != 0x53)
            break;
        reader = (struct reader){frame + 11, frame + size, 0};
        if (frame[10] == 0x15) {
            if (!is_plain_disposition(&reader))
                break;
        } else if (frame[10] == 0x14) {
            struct reader again = reader;
            uint64_t key = ((uint64_t)frame[6] << 8 | frame[7]) << 32;
            uint32_t handle;

            if (!list(&again) || number(&again, &handle) != SAID)
                break;
            key |= handle;
            if (key != known) {
                int is_begun = is_among(begun, key);
                int is_continued = is_begun ? 0 : is_among(continued, key);

                if (is_begun < 0 || is_continued < 0)
                    return NULL;
                if (!is_begun && !is_continued)
                    break;
                known = key;
                known_in = is_begun ? begun : continued;
                if (counted != (int32_t)(key >> 32)) {
                    if (next_id >= 0 && keep_next_id(next_ids, counted, (uint32_t)next_id) < 0)
                        return NULL;
                    counted = (int32_t)(key >> 32);
                    next_id = next_id_of(next_ids, counted);
                }
            }
            if (next_id < 0 || !is_plain_transfer(&reader, known_in == continued, (uint32_t)next_id))
                break;
            if (known_in == begun)
                next_id = (uint32_t)(next_id + 1);
        } else {
            break;
        }
        position += size;
    }
    if (next_id == -2 || (next_id >= 0 && keep_next_id(next_ids, counted, (uint32_t)next_id) < 0))
        return NULL;
    return PyLong_FromSsize_t(position);
}
