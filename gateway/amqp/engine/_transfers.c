/*
 * The work for each message on the wire, in C: the loops of native_loops.
 *
 * Each function does what the function of its name in python_loops does, and nothing else: the callers in Python decide
 * which messages go where, how many, and whether they may. That module is the fallback, and the tests compare the two.
 *
 * The engine's functions come as pointers (bind), so that the engine is in the process once and this module links to
 * nothing. Its structures come as integers, their addresses. What python_loops says about their lifetime is even more
 * important here: an address is valid as long as the link it came from, and the callers drop both together.
 *
 * The interpreter's lock is held, except while the engine writes its output (pull): all else is short.
 *
 * It uses only the part of Python's API that all versions from 3.11 on share (Py_LIMITED_API, set by
 * .build/extension.py): one library for all of them. That part has calls in place of macros, so nothing is asked twice.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* ---------------------------------------------------------------------------------------------------- the engine */

struct pn_collector_t;
struct pn_delivery_t;
struct pn_event_t;
struct pn_link_t;
struct pn_transport_t;
typedef int pn_event_type_t; /* an enum */

struct pn_bytes_t {
    size_t size;
    char *start;
};

/* The engine's functions: type, name, parameters. They are spelled as cffi spells them, and compared with that. */
#define ENGINE(X)                                                                                                      \
    X(struct pn_event_t *, pn_collector_peek, (struct pn_collector_t *))                                               \
    X(_Bool, pn_collector_pop, (struct pn_collector_t *))                                                              \
    X(pn_event_type_t, pn_event_type, (struct pn_event_t *))                                                           \
    X(struct pn_link_t *, pn_event_link, (struct pn_event_t *))                                                        \
    X(struct pn_delivery_t *, pn_event_delivery, (struct pn_event_t *))                                                \
    X(struct pn_delivery_t *, pn_link_current, (struct pn_link_t *))                                                   \
    X(_Bool, pn_link_advance, (struct pn_link_t *))                                                                    \
    X(ssize_t, pn_link_recv, (struct pn_link_t *, char *, size_t))                                                     \
    X(ssize_t, pn_link_send, (struct pn_link_t *, char *, size_t))                                                     \
    X(struct pn_delivery_t *, pn_delivery, (struct pn_link_t *, struct pn_bytes_t))                                    \
    X(size_t, pn_delivery_pending, (struct pn_delivery_t *))                                                           \
    X(_Bool, pn_delivery_partial, (struct pn_delivery_t *))                                                            \
    X(_Bool, pn_delivery_aborted, (struct pn_delivery_t *))                                                            \
    X(_Bool, pn_delivery_settled, (struct pn_delivery_t *))                                                            \
    X(struct pn_bytes_t, pn_delivery_tag, (struct pn_delivery_t *))                                                    \
    X(uint64_t, pn_delivery_remote_state, (struct pn_delivery_t *))                                                    \
    X(void, pn_delivery_update, (struct pn_delivery_t *, uint64_t))                                                    \
    X(void, pn_delivery_settle, (struct pn_delivery_t *))                                                              \
    X(ssize_t, pn_transport_pending, (struct pn_transport_t *))                                                        \
    X(ssize_t, pn_transport_peek, (struct pn_transport_t *, char *, size_t))                                           \
    X(void, pn_transport_pop, (struct pn_transport_t *, size_t))

#define FIELD(returned, name, taken) returned(*name) taken;
#define DESCRIPTION(returned, name, taken) {#name, #returned "(*)" #taken, &engine.name, sizeof engine.name},

static struct { ENGINE(FIELD) } engine;

static const struct {
    const char *name, *signature;
    void *place;
    size_t size;
} functions[] = {ENGINE(DESCRIPTION)};

enum { FUNCTIONS = sizeof functions / sizeof *functions };
static _Bool is_bound = 0;

/* Types of events; states of deliveries; why take_messages stops; places in a row. As they are in native and model. */
enum { LINK_FLOW = 26, DELIVERY = 28, TRANSPORT = 29 };
enum { ACCEPTED = 0x24, TRANSACTIONAL = 0x34 };
enum { NOTHING, TURN, ALONE, BATCH };
enum { ID = 0, TIME = 1, TOPIC = 2, BARE = 3, CONTENT = 6, ROW_FIELDS = 7 };

#define OUTPUT_BYTES (256 * 1024) /* about what is pulled in one call */

PyDoc_STRVAR(bind_doc, "bind($module, addresses, /)\n--\n\n"
             "Take the engine's functions: every one that SIGNATURES names.");
static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *addresses;
    void *found[FUNCTIONS];

    if (!PyArg_ParseTuple(args, "O!:bind", &PyDict_Type, &addresses))
        return NULL;
    for (size_t i = 0; i < FUNCTIONS; i++) {
        PyObject *address = PyDict_GetItemString(addresses, functions[i].name);
        found[i] = address == NULL ? NULL : PyLong_AsVoidPtr(address);
        if (found[i] == NULL) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_KeyError, functions[i].name);
            return NULL;
        }
    }
    for (size_t i = 0; i < FUNCTIONS; i++)
        memcpy(functions[i].place, &found[i], functions[i].size);
    is_bound = 1;
    Py_RETURN_NONE;
}

/* Converts an argument that is the address of a structure of the engine's; 0 with an error set where it is none. */
static int structure_at(PyObject *address, void *found)
{
    void *structure = is_bound ? PyLong_AsVoidPtr(address) : NULL;

    if (structure == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, is_bound ? "0 is the address of nothing" : "bind() comes first");
    memcpy(found, &structure, sizeof structure);
    return structure != NULL;
}

/* Returns the condition, and sets an error where it does not hold. */
static _Bool is_so(int so, const char *what)
{
    if (!so)
        PyErr_SetString(PyExc_TypeError, what);
    return so;
}

/* ---------------------------------------------------------------------------------------------------- the events */

PyDoc_STRVAR(top_doc, "top($module, collector, /)\n--\n\n"
             "The type of the first event, and its link if it is about a delivery or a flow, else 0; None: no event.");
static PyObject *top(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_collector_t *collector;
    struct pn_event_t *event;

    if (!structure_at(address, &collector))
        return NULL;
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        int kind = engine.pn_event_type(event);
        if (kind != TRANSPORT) {
            _Bool has_link = kind == DELIVERY || kind == LINK_FLOW;
            return Py_BuildValue("iN", kind, PyLong_FromVoidPtr(has_link ? engine.pn_event_link(event) : NULL));
        }
        engine.pn_collector_pop(collector);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(skip_doc, "skip($module, collector, kind, link, /)\n--\n\n"
             "Remove the first event, and those right after it that have this type and link.");
static PyObject *skip(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct pn_collector_t *collector;
    struct pn_link_t *link;
    struct pn_event_t *event;
    int kind;

    if (!PyArg_ParseTuple(args, "O&iO&:skip", structure_at, &collector, &kind, structure_at, &link))
        return NULL;
    engine.pn_collector_pop(collector);
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        int found = engine.pn_event_type(event);
        if (found != TRANSPORT && (found != kind || engine.pn_event_link(event) != link))
            break;
        engine.pn_collector_pop(collector);
    }
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------- messages that come in */

/* Append a new object, and drop the reference to it; NULL is one that could not be made. */
static int append(PyObject *list, PyObject *item)
{
    int result = item == NULL ? -1 : PyList_Append(list, item);
    Py_XDECREF(item);
    return result;
}

/* The content of the current delivery, which has this size. */
static PyObject *content_of(struct pn_link_t *link, size_t size)
{
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);

    if (content != NULL && size > 0 && engine.pn_link_recv(link, PyBytes_AsString(content), size) != (ssize_t)size) {
        Py_CLEAR(content);
        PyErr_SetString(PyExc_SystemError, "the engine gave less of a message than it had");
    }
    return content;
}

/* What is_batch says of a delivery's tag; -1 with an error set. */
static int ask(PyObject *is_batch, struct pn_delivery_t *delivery)
{
    struct pn_bytes_t tag = engine.pn_delivery_tag(delivery);
    PyObject *said = PyObject_CallFunction(is_batch, "y#", tag.size ? tag.start : "", (Py_ssize_t)tag.size);
    int is_one = said == NULL ? -1 : PyObject_IsTrue(said);

    Py_XDECREF(said);
    return is_one;
}

PyDoc_STRVAR(take_messages_doc, "take_messages($module, link, max_bytes, is_batch, /)\n--\n\n"
             "Take the complete messages, up to one that must go alone, or is not settled as those before it are:\n"
             "contents, deliveries (None if they came settled), why there are no more (native.Stop). is_batch is None, or\n"
             "is called with the tag of each; it must not use the engine.");
static PyObject *take_messages(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct pn_link_t *link;
    struct pn_delivery_t *delivery;
    Py_ssize_t max_bytes;
    PyObject *is_batch, *contents, *deliveries = NULL;
    _Bool are_settled = 0;
    int stop = NOTHING, is_one = 0;

    if (!PyArg_ParseTuple(args, "O&nO:take_messages", structure_at, &link, &max_bytes, &is_batch) ||
        (contents = PyList_New(0)) == NULL)
        return NULL;
    while (stop == NOTHING && (delivery = engine.pn_link_current(link)) != NULL) {
        size_t size = engine.pn_delivery_pending(delivery);
        _Bool is_settled = engine.pn_delivery_settled(delivery);
        /* The engine reports one byte for an aborted delivery, and gives none. */
        if ((Py_ssize_t)size > max_bytes || (size == 1 && engine.pn_delivery_aborted(delivery)))
            stop = ALONE;
        else if (engine.pn_delivery_partial(delivery))
            break;
        /* Looked at with a coordinator or without: a message of an unknown transaction must not be published. */
        else if (engine.pn_delivery_remote_state(delivery) == TRANSACTIONAL)
            stop = ALONE;
        else if (PyList_Size(contents) > 0 && is_settled != are_settled)
            stop = TURN;
        else if (is_batch != Py_None && (is_one = ask(is_batch, delivery)) != 0)
            stop = BATCH;
        if (is_one < 0)
            goto failed;
        if (stop != NOTHING)
            break;
        are_settled = is_settled;
        if (append(contents, content_of(link, size)) < 0)
            goto failed;
        if (!is_settled && ((deliveries == NULL && (deliveries = PyList_New(0)) == NULL) ||
                            append(deliveries, PyLong_FromVoidPtr(delivery)) < 0))
            goto failed;
        engine.pn_link_advance(link);
        if (is_settled)
            engine.pn_delivery_settle(delivery);
    }
    return Py_BuildValue("NNi", contents, deliveries == NULL ? Py_NewRef(Py_None) : deliveries, stop);

failed:
    Py_DECREF(contents);
    Py_XDECREF(deliveries);
    return NULL;
}

PyDoc_STRVAR(settle_doc, "settle($module, deliveries, outcome, /)\n--\n\n"
             "Settle deliveries with an outcome; 0: with the outcome that they have.");
static PyObject *settle(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *given, *deliveries;
    int outcome;
    _Bool are_all = 1;

    if (!PyArg_ParseTuple(args, "Oi:settle", &given, &outcome) ||
        (deliveries = PySequence_Tuple(given)) == NULL)
        return NULL;
    for (Py_ssize_t i = 0, count = PyTuple_Size(deliveries); i < count && are_all; i++) {
        struct pn_delivery_t *delivery;
        are_all = structure_at(PyTuple_GetItem(deliveries, i), &delivery);
        if (are_all && outcome)
            engine.pn_delivery_update(delivery, (uint64_t)outcome);
        if (are_all)
            engine.pn_delivery_settle(delivery);
    }
    Py_DECREF(deliveries);
    return are_all ? Py_NewRef(Py_None) : NULL;
}

/* ----------------------------------------------------------------------------------------- messages that go out */

enum { HEAD = 8, FRONT_BYTES = 1024, PIECES = 5 };

/* A message to be sent. Its front is in the buffer, after room for the head it has in a batch, or is a bytes object. */
struct message {
    PyObject *number, *front;
    char *content, *front_bytes;
    int64_t id;
    Py_ssize_t bare, content_size, front_size;
    unsigned char buffer[HEAD + FRONT_BYTES];
};

static unsigned char *put(unsigned char *to, const void *bytes, Py_ssize_t size)
{
    memcpy(to, bytes, (size_t)size);
    return to + size;
}

static unsigned char *put_piece(unsigned char *to, struct pn_bytes_t piece)
{
    return put(to, piece.start, (Py_ssize_t)piece.size);
}

static unsigned char *put_number(unsigned char *to, uint64_t number, int size)
{
    while (size-- > 0)
        *to++ = (unsigned char)(number >> 8 * size);
    return to;
}

static unsigned char *put_hexadecimal(unsigned char *to, uint32_t number)
{
    for (int shift = 28; shift >= 0; shift -= 4)
        *to++ = (unsigned char)"0123456789abcdef"[number >> shift & 15];
    return to;
}

static unsigned char *put_decimal(unsigned char *to, uint64_t number, int digits)
{
    for (int i = digits - 1; i >= 0; i--, number /= 10)
        to[i] = (unsigned char)('0' + number % 10);
    return to + digits;
}

/*
 * Write the front of a message that needs only our annotations after its own header. The bytes between their values are
 * given (Splicer.pieces). Returns 0 where it needs more, or does not fit; -1 with an error set.
 */
static int write_front(struct message *message, PyObject *row, PyObject *time, const struct pn_bytes_t *pieces)
{
    const unsigned char *header = (const unsigned char *)message->content;
    uint64_t id = (uint64_t)message->id;
    Py_ssize_t bare = message->bare, topic_size, pairs;
    const char *topic = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(row, TOPIC), &topic_size);
    int64_t time_ms = PyLong_AsLongLong(time);
    unsigned char *to = message->buffer + HEAD;
    int digits = 1;

    if (topic == NULL || (time_ms == -1 && PyErr_Occurred()))
        return -1;
    if (message->id < 0 || topic_size > UINT8_MAX ||
        (bare > 0 && (bare < 5 || memcmp(header, "\0\x53\x70\xc0", 4) != 0 || header[4] + 5 != bare)))
        return 0;
    for (uint64_t rest = id; rest >= 10; rest /= 10)
        digits++;
    pairs = 2 + topic_size + 8 + 8 + 17 + 1 + digits;
    for (int i = 0; i < PIECES; i++)
        pairs += (Py_ssize_t)pieces[i].size;
    if (bare + 8 + pairs > FRONT_BYTES)
        return 0;
    to = put(put(to, header, bare), "\0\x53\x72\xd1", 4);
    to = put_number(to, (uint64_t)pairs, 4); /* the count is in the first piece */
    to = put_number(put_number(put_piece(to, pieces[0]), 0xa1, 1), (uint64_t)topic_size, 1);
    to = put_number(put_piece(put(to, topic, topic_size), pieces[1]), id, 8);
    to = put_number(put_piece(to, pieces[2]), (uint64_t)time_ms, 8);
    to = put(put_hexadecimal(put_piece(to, pieces[3]), (uint32_t)(id >> 32)), "-", 1);
    to = put_piece(put_hexadecimal(to, (uint32_t)id), pieces[4]);
    to = put_decimal(put_number(to, (uint64_t)digits, 1), id, digits);
    message->front_size = to - (message->buffer + HEAD);
    return 1;
}

/*
 * Take a row apart, and make its front. Returns 0, or -1 with an error set. message->front is a new reference, or NULL;
 * all else in the message is borrowed from the row.
 */
static int read_row(struct message *message, PyObject *row, const struct pn_bytes_t *pieces, PyObject *front_of)
{
    PyObject *time, *bare;
    int written = 0;

    message->front = NULL;
    if (!is_so(Py_IS_TYPE(row, &PyTuple_Type) && PyTuple_Size(row) == ROW_FIELDS, "a row has seven fields") ||
        !is_so(Py_IS_TYPE(message->number = PyTuple_GetItem(row, ID), &PyLong_Type), "an id is an integer") ||
        !is_so(Py_IS_TYPE(time = PyTuple_GetItem(row, TIME), &PyLong_Type), "a time is an integer") ||
        !is_so(Py_IS_TYPE(bare = PyTuple_GetItem(row, BARE), &PyLong_Type),
               "where a bare message begins is an integer") ||
        PyBytes_AsStringAndSize(PyTuple_GetItem(row, CONTENT), &message->content, &message->content_size) < 0)
        return -1;
    message->id = PyLong_AsLongLong(message->number);
    message->bare = PyLong_AsSsize_t(bare);
    if ((message->id == -1 || message->bare == -1) && PyErr_Occurred())
        return -1;
    if (message->bare < 0 || message->bare > message->content_size) {
        PyErr_SetString(PyExc_ValueError, "a bare message begins within its content");
        return -1;
    }
    if (pieces != NULL && (written = write_front(message, row, time, pieces)) != 0)
        return written < 0 ? -1 : 0;
    message->front = PyObject_CallFunctionObjArgs(front_of, row, NULL);
    if (message->front == NULL)
        return -1;
    if (PyBytes_AsStringAndSize(message->front, &message->front_bytes, &message->front_size) < 0) {
        Py_CLEAR(message->front);
        return -1;
    }
    return 0;
}

/* Give a message to the current delivery of a link, in a batch with its head. The engine copies it. */
static void give(struct pn_link_t *link, struct message *message, _Bool in_batch)
{
    Py_ssize_t rest = message->content_size - message->bare;
    Py_ssize_t head = in_batch ? HEAD : 0;

    if (in_batch)
        put_number(put(message->buffer, "\0\x53\x75\xb0", 4), (uint64_t)(message->front_size + rest), 4);
    if (message->front == NULL) {
        engine.pn_link_send(link, (char *)message->buffer + HEAD - head, (size_t)(head + message->front_size));
    } else {
        engine.pn_link_send(link, (char *)message->buffer, (size_t)head);
        engine.pn_link_send(link, message->front_bytes, (size_t)message->front_size);
    }
    engine.pn_link_send(link, message->content + message->bare, (size_t)rest);
}

PyDoc_STRVAR(send_doc, "send($module, link, rows, pieces, front_of, unsettled, in_batch, /)\n--\n\n"
             "Send messages, for which there must be credit; return the bytes of their contents. Fronts are made of pieces, or\n"
             "by front_of from a row, which must not use the engine. Ids go to unsettled, by delivery; None: all are sent\n"
             "settled. In a batch all are sent in one delivery, settled, each in a data section.");
static PyObject *send_rows(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct pn_link_t *link;
    struct pn_delivery_t *delivery = NULL;
    PyObject *given, *rows, *given_pieces, *front_of, *unsettled;
    struct pn_bytes_t pieces[PIECES];
    Py_ssize_t total = 0, count;
    int in_batch, result = 0;

    if (!PyArg_ParseTuple(args, "O&OOOOp:send", structure_at, &link, &given, &given_pieces, &front_of, &unsettled,
                          &in_batch) ||
        !is_so(unsettled == Py_None || PyDict_CheckExact(unsettled), "unsettled is a dict or None") ||
        !is_so(given_pieces == Py_None || PyTuple_Check(given_pieces), "pieces are a tuple or None") ||
        !is_so(given_pieces == Py_None || PyTuple_Size(given_pieces) == PIECES, "there are five pieces"))
        return NULL;
    for (int i = 0; i < PIECES && given_pieces != Py_None; i++) {
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(given_pieces, i), &pieces[i].start, &size) < 0)
            return NULL;
        pieces[i].size = (size_t)size;
    }
    rows = PySequence_Tuple(given); /* keeps the rows alive, whatever front_of does */
    if (rows == NULL)
        return NULL;
    count = PyTuple_Size(rows);
    for (Py_ssize_t i = 0; i < count && result == 0; i++) {
        struct message message;
        struct pn_bytes_t tag = {sizeof message.id, (char *)&message.id};
        PyObject *address;

        if ((result = read_row(&message, PyTuple_GetItem(rows, i), given_pieces == Py_None ? NULL : pieces,
                               front_of)) < 0)
            break;
        total += message.content_size;
        if ((!in_batch || delivery == NULL) && (delivery = engine.pn_delivery(link, tag)) == NULL)
            PyErr_NoMemory();
        else
            give(link, &message, in_batch);
        Py_XDECREF(message.front);
        if (delivery == NULL)
            result = -1;
        if (result < 0 || in_batch)
            continue;
        engine.pn_link_advance(link);
        if (unsettled == Py_None) {
            engine.pn_delivery_settle(delivery);
        } else {
            address = PyLong_FromVoidPtr(delivery);
            result = address == NULL ? -1 : PyDict_SetItem(unsettled, address, message.number);
            Py_XDECREF(address);
        }
    }
    Py_DECREF(rows);
    if (result < 0)
        return NULL;
    if (in_batch && delivery != NULL) {
        engine.pn_link_advance(link);
        engine.pn_delivery_settle(delivery);
    }
    return PyLong_FromSsize_t(total);
}

PyDoc_STRVAR(take_outcomes_doc, "take_outcomes($module, collector, unsettled, accepted, confirm, /)\n--\n\n"
             "Remove the first events, as long as they accept deliveries in unsettled; return how many. Ids go to accepted.\n"
             "Deliveries that their receiver has not settled get the outcome and go to confirm; others are settled.");
static PyObject *take_outcomes(PyObject *Py_UNUSED(module), PyObject *args)
{
    struct pn_collector_t *collector;
    struct pn_event_t *event;
    PyObject *unsettled, *accepted, *confirm;
    Py_ssize_t taken = 0;

    if (!PyArg_ParseTuple(args, "O&O!O!O!:take_outcomes", structure_at, &collector, &PyDict_Type, &unsettled,
                          &PyList_Type, &accepted, &PyList_Type, &confirm))
        return NULL;
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        struct pn_delivery_t *delivery = engine.pn_event_delivery(event);
        _Bool is_settled;
        PyObject *address, *id;
        int result = 0;
        if (delivery == NULL || engine.pn_delivery_remote_state(delivery) != ACCEPTED)
            break;
        if ((address = PyLong_FromVoidPtr(delivery)) == NULL)
            return NULL;
        /* An event keeps its delivery alive: a delivery whose address is in here is the one that was put here. */
        id = PyDict_GetItemWithError(unsettled, address);
        is_settled = engine.pn_delivery_settled(delivery);
        if (id != NULL && (PyList_Append(accepted, id) < 0 || (!is_settled && PyList_Append(confirm, address) < 0) ||
                           PyDict_DelItem(unsettled, address) < 0))
            result = -1;
        Py_DECREF(address);
        if (result < 0 || (id == NULL && PyErr_Occurred()))
            return NULL;
        if (id == NULL)
            break;
        if (is_settled)
            engine.pn_delivery_settle(delivery);
        else
            engine.pn_delivery_update(delivery, ACCEPTED);
        engine.pn_collector_pop(collector);
        taken++;
    }
    return PyLong_FromSsize_t(taken);
}

/* ---------------------------------------------------------------------------------------------------- the output */

PyDoc_STRVAR(pull_doc, "pull($module, transport, /)\n--\n\n"
             "The bytes that the engine has to write now, about 256 KB of them; empty if there are none, or it is closed.");
static PyObject *pull(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_transport_t *transport;
    PyObject *data = PyByteArray_FromStringAndSize(NULL, 0);
    Py_ssize_t total = 0, room = 0;
    ssize_t size;

    if (data == NULL || !structure_at(address, &transport)) {
        Py_XDECREF(data);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    size = engine.pn_transport_pending(transport);
    Py_END_ALLOW_THREADS
    while (size > 0 && total < OUTPUT_BYTES) {
        if (total + size > room) {
            /* Mostly there is one piece. If there are more, there may be many: the array grows only once. */
            room = room == 0 ? size : OUTPUT_BYTES + size;
            if (PyByteArray_Resize(data, room) < 0) {
                Py_DECREF(data);
                return NULL;
            }
        }
        if (engine.pn_transport_peek(transport, PyByteArray_AsString(data) + total, (size_t)size) != size) {
            Py_DECREF(data);
            PyErr_SetString(PyExc_SystemError, "the engine gave less of its output than it had");
            return NULL;
        }
        total += size;
        /* With its buffer empty, the engine writes its next frames: that takes the time. */
        Py_BEGIN_ALLOW_THREADS
        engine.pn_transport_pop(transport, (size_t)size);
        size = engine.pn_transport_pending(transport);
        Py_END_ALLOW_THREADS
    }
    if (PyByteArray_Resize(data, total) < 0)
        Py_CLEAR(data);
    return data;
}

/* ---------------------------------------------------------------------------------------------------- the module */

#include "plain_frames.c"

static PyMethodDef methods[] = {
    {"bind", bind, METH_VARARGS, bind_doc},
    {"top", top, METH_O, top_doc},
    {"skip", skip, METH_VARARGS, skip_doc},
    {"take_messages", take_messages, METH_VARARGS, take_messages_doc},
    {"settle", settle, METH_VARARGS, settle_doc},
    {"send", send_rows, METH_VARARGS, send_doc},
    {"take_outcomes", take_outcomes, METH_VARARGS, take_outcomes_doc},
    {"pull", pull, METH_O, pull_doc},
    {"plain_frames", plain_frames, METH_VARARGS, plain_frames_doc},
    {NULL, NULL, 0, NULL},
};

static int fill(PyObject *module)
{
    PyObject *signatures = PyDict_New();
    int result = signatures == NULL ? -1 : 0;

    for (size_t i = 0; i < FUNCTIONS && result == 0; i++) {
        PyObject *signature = PyUnicode_FromString(functions[i].signature);
        result = signature == NULL ? -1 : PyDict_SetItemString(signatures, functions[i].name, signature);
        Py_XDECREF(signature);
    }
    if (result == 0)
        result = PyModule_AddObjectRef(module, "SIGNATURES", signatures);
    Py_XDECREF(signatures);
    return result;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "gateway.amqp.engine._transfers",
    .m_doc = "The work for each message on the wire, in C (see native_loops).",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__transfers(void)
{
    return PyModuleDef_Init(&definition);
}
