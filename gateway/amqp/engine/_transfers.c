/*
 * What happens once a message on the wire, in C: the loops of native_loops.
 *
 * Each function does for many deliveries what the one of its name in python_loops does, and nothing else: which messages
 * go where, how many, and who may, is said in Python. That module is the fallback and the oracle of this one.
 *
 * The engine's functions come as pointers (bind), so that the engine is in the process once and this module links to
 * nothing. Its structures come as integers, their addresses. What python_loops says of their lives holds here all the
 * more: an address is worth as much as the link it came from, and the callers let go of both together.
 *
 * The interpreter's lock is held, except while the engine writes its output (pull): all else is short.
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

/* What is called: what it returns, its name, what it takes; in the words of cffi, with whose they are compared. */
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
    X(_Bool, pn_link_is_receiver, (struct pn_link_t *))                                                                \
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

static struct {
    ENGINE(FIELD)
} engine;

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
enum { ID = 0, BARE = 3, CONTENT = 6, ROW_FIELDS = 7 };

#define OUTPUT_BYTES (256 * 1024) /* what is pulled at once, about */

PyDoc_STRVAR(bind_doc, "bind($module, addresses, /)\n--\n\n"
                       "Take the addresses of the engine's functions, by name: of all that SIGNATURES has.");

static PyObject *
bind(PyObject *Py_UNUSED(module), PyObject *addresses)
{
    void *found[FUNCTIONS];

    if (!PyDict_Check(addresses)) {
        PyErr_SetString(PyExc_TypeError, "addresses are a dict");
        return NULL;
    }
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

/* ----------------------------------------------------------------------------------------------------- arguments */

static _Bool
has_arguments(Py_ssize_t given, Py_ssize_t taken)
{
    if (given != taken)
        PyErr_Format(PyExc_TypeError, "takes %zd arguments, not %zd", taken, given);
    return given == taken;
}

/* Whether an argument is what it is to be; sets the error. */
static _Bool
is_so(int so, const char *what)
{
    if (!so)
        PyErr_SetString(PyExc_TypeError, what);
    return so;
}

/* A structure of the engine's; NULL with an error set where the integer is none. */
static void *
structure_at(PyObject *address)
{
    void *found;

    if (!is_bound) {
        PyErr_SetString(PyExc_RuntimeError, "bind() comes first");
        return NULL;
    }
    found = PyLong_AsVoidPtr(address);
    if (found == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "0 is the address of nothing");
    return found;
}

/* ---------------------------------------------------------------------------------------------------- the events */

PyDoc_STRVAR(top_doc, "top($module, collector, /)\n--\n\n"
                      "The type of the event on top of a collector, and its link where it is about a delivery or a\n"
                      "flow, else 0. None where there is no event. Events of the transport are taken off.");

static PyObject *
top(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_collector_t *collector = structure_at(address);
    struct pn_event_t *event;

    if (collector == NULL)
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
                       "Take off the event on top, and those behind it that are of this type and link.");

static PyObject *
skip(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;
    struct pn_link_t *link;
    struct pn_event_t *event;
    long kind;

    if (!has_arguments(given, 3) || (collector = structure_at(args[0])) == NULL ||
        (link = structure_at(args[2])) == NULL)
        return NULL;
    kind = PyLong_AsLong(args[1]);
    if (kind == -1 && PyErr_Occurred())
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

PyDoc_STRVAR(drop_doc, "drop($module, collector, /)\n--\n\n"
                       "Take the event off that is on top of a collector: it was dealt with.");

static PyObject *
drop(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_collector_t *collector = structure_at(address);

    if (collector == NULL)
        return NULL;
    engine.pn_collector_pop(collector);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(delivery_on_top_doc, "delivery_on_top($module, collector, /)\n--\n\n"
                                  "The delivery that the event on top is about; 0 where it is about none.");

static PyObject *
delivery_on_top(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_collector_t *collector = structure_at(address);
    struct pn_event_t *event;

    if (collector == NULL)
        return NULL;
    event = engine.pn_collector_peek(collector);
    return PyLong_FromVoidPtr(event == NULL ? NULL : engine.pn_event_delivery(event));
}

/* ----------------------------------------------------------------------------------------- messages that come in */

/* Append what is new, and let go of it; NULL for what could not be made. */
static int
append(PyObject *list, PyObject *item)
{
    int result = item == NULL ? -1 : PyList_Append(list, item);

    Py_XDECREF(item);
    return result;
}

/* What the current delivery has brought, which is so much. */
static PyObject *
content_of(struct pn_link_t *link, size_t size)
{
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);

    if (content != NULL && size > 0 && engine.pn_link_recv(link, PyBytes_AS_STRING(content), size) != (ssize_t)size) {
        Py_CLEAR(content);
        PyErr_SetString(PyExc_SystemError, "the engine gave less of a message than it had");
    }
    return content;
}

/* What is_batch says of a delivery's tag; -1 with an error set. */
static int
ask(PyObject *is_batch, struct pn_delivery_t *delivery)
{
    struct pn_bytes_t tag = engine.pn_delivery_tag(delivery);
    PyObject *bytes = PyBytes_FromStringAndSize(tag.start, (Py_ssize_t)tag.size);
    PyObject *said = bytes == NULL ? NULL : PyObject_CallOneArg(is_batch, bytes);
    int is_one = said == NULL ? -1 : PyObject_IsTrue(said);

    Py_XDECREF(bytes);
    Py_XDECREF(said);
    return is_one;
}

PyDoc_STRVAR(take_messages_doc,
             "take_messages($module, link, max_bytes, is_batch, /)\n--\n\n"
             "Take the messages that are complete, up to one that goes alone, or came settled unlike those before it.\n"
             "is_batch is asked with the tag of each, once, unless it is None; it leaves the engine alone. Returns\n"
             "their contents; their deliveries, None where they came settled; why there are no more (native.Stop).");

static PyObject *
take_messages(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    struct pn_link_t *link;
    struct pn_delivery_t *delivery;
    size_t max_bytes;
    PyObject *contents = NULL, *deliveries = NULL;
    _Bool are_settled = 0;
    int stop = NOTHING;

    if (!has_arguments(given, 3) || (link = structure_at(args[0])) == NULL)
        return NULL;
    max_bytes = PyLong_AsSize_t(args[1]);
    if ((max_bytes == (size_t)-1 && PyErr_Occurred()) || (contents = PyList_New(0)) == NULL)
        return NULL;
    while ((delivery = engine.pn_link_current(link)) != NULL) {
        size_t size = engine.pn_delivery_pending(delivery);
        _Bool is_settled;
        int is_batch = 0;

        /* Of an aborted delivery the engine says that it has one byte, and gives none. */
        if (size > max_bytes || (size == 1 && engine.pn_delivery_aborted(delivery))) {
            stop = ALONE;
            break;
        }
        if (engine.pn_delivery_partial(delivery))
            break;
        /* Each is asked, with a coordinator or without: a message of an unknown transaction must not exist. */
        if (engine.pn_delivery_remote_state(delivery) == TRANSACTIONAL) {
            stop = ALONE;
            break;
        }
        is_settled = engine.pn_delivery_settled(delivery);
        if (PyList_GET_SIZE(contents) == 0) {
            are_settled = is_settled;
        } else if (is_settled != are_settled) {
            stop = TURN;
            break;
        }
        if (args[2] != Py_None && (is_batch = ask(args[2], delivery)) < 0)
            goto failed;
        if (is_batch) {
            stop = BATCH;
            break;
        }
        if (append(contents, content_of(link, size)) < 0)
            goto failed;
        if (!is_settled) {
            if (deliveries == NULL && (deliveries = PyList_New(0)) == NULL)
                goto failed;
            if (append(deliveries, PyLong_FromVoidPtr(delivery)) < 0)
                goto failed;
        }
        engine.pn_link_advance(link);
        if (is_settled)
            engine.pn_delivery_settle(delivery);
    }
    if (deliveries == NULL)
        deliveries = Py_NewRef(Py_None);
    return Py_BuildValue("NNi", contents, deliveries, stop);

failed:
    Py_DECREF(contents);
    Py_XDECREF(deliveries);
    return NULL;
}

PyDoc_STRVAR(discard_doc, "discard($module, link, /)\n--\n\n"
                          "Let go of the transfers that came on a link and that nobody reads.");

static PyObject *
discard(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_link_t *link = structure_at(address);
    struct pn_delivery_t *delivery;

    if (link == NULL)
        return NULL;
    while (engine.pn_link_is_receiver(link) && (delivery = engine.pn_link_current(link)) != NULL) {
        engine.pn_link_advance(link);
        engine.pn_delivery_settle(delivery);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(settle_doc, "settle($module, deliveries, outcome, /)\n--\n\n"
                         "Settle deliveries, with an outcome; 0 for none but what they have.");

static PyObject *
settle(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    uint64_t outcome;
    PyObject *deliveries;

    if (!has_arguments(given, 2))
        return NULL;
    outcome = PyLong_AsUnsignedLongLong(args[1]);
    if (outcome == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    deliveries = PySequence_Fast(args[0], "deliveries are a list");
    if (deliveries == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(deliveries); i++) {
        struct pn_delivery_t *delivery = structure_at(PySequence_Fast_GET_ITEM(deliveries, i));

        if (delivery == NULL) {
            Py_DECREF(deliveries);
            return NULL;
        }
        if (outcome)
            engine.pn_delivery_update(delivery, outcome);
        engine.pn_delivery_settle(delivery);
    }
    Py_DECREF(deliveries);
    Py_RETURN_NONE;
}

/* ----------------------------------------------------------------------------------------- messages that go out */

/* Send one message. Returns the bytes of its content, or -1 with an error set. */
static Py_ssize_t
send_row(struct pn_link_t *link, PyObject *row, PyObject *front, PyObject *unsettled)
{
    PyObject *number, *content, *address;
    int64_t id;
    Py_ssize_t size, bare;
    struct pn_bytes_t tag = {sizeof id, (char *)&id};
    struct pn_delivery_t *delivery;
    int result;

    if (!is_so(PyTuple_Check(row) && PyTuple_GET_SIZE(row) == ROW_FIELDS, "a row has seven fields") ||
        !is_so(PyLong_Check(number = PyTuple_GET_ITEM(row, ID)), "an id is an integer") ||
        !is_so(PyLong_Check(PyTuple_GET_ITEM(row, BARE)), "where a bare message begins is an integer") ||
        !is_so(PyBytes_Check(content = PyTuple_GET_ITEM(row, CONTENT)), "a content is bytes") ||
        !is_so(PyBytes_Check(front), "a front is bytes"))
        return -1;
    size = PyBytes_GET_SIZE(content);
    id = PyLong_AsLongLong(number);
    if (id == -1 && PyErr_Occurred())
        return -1;
    bare = PyLong_AsSsize_t(PyTuple_GET_ITEM(row, BARE));
    if (bare < 0 || bare > size) {
        PyErr_SetString(PyExc_ValueError, "a bare message begins within its content");
        return -1;
    }
    delivery = engine.pn_delivery(link, tag);
    if (delivery == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    engine.pn_link_send(link, PyBytes_AS_STRING(front), (size_t)PyBytes_GET_SIZE(front));
    engine.pn_link_send(link, PyBytes_AS_STRING(content) + bare, (size_t)(size - bare));
    engine.pn_link_advance(link);
    if (unsettled == Py_None) {
        engine.pn_delivery_settle(delivery);
        return size;
    }
    address = PyLong_FromVoidPtr(delivery);
    result = address == NULL ? -1 : PyDict_SetItem(unsettled, address, number);
    Py_XDECREF(address);
    return result < 0 ? -1 : size;
}

PyDoc_STRVAR(send_doc, "send($module, link, rows, fronts, unsettled, /)\n--\n\n"
                       "Send messages, each with its front before its bare message; the link must have credit for them.\n"
                       "The id of each is noted in unsettled by its delivery; None for those that go out settled. Returns\n"
                       "the bytes of their contents.");

static PyObject *
send_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    struct pn_link_t *link;
    PyObject *rows, *fronts = NULL;
    Py_ssize_t total = 0;

    if (!has_arguments(given, 4) || (link = structure_at(args[0])) == NULL ||
        !is_so(args[3] == Py_None || PyDict_CheckExact(args[3]), "unsettled is a dict or None") ||
        (rows = PySequence_Fast(args[1], "rows are a list")) == NULL)
        return NULL;
    fronts = PySequence_Fast(args[2], "fronts are a list");
    if (fronts == NULL)
        goto failed;
    if (PySequence_Fast_GET_SIZE(rows) != PySequence_Fast_GET_SIZE(fronts)) {
        PyErr_SetString(PyExc_ValueError, "there are as many fronts as rows");
        goto failed;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(rows); i++) {
        Py_ssize_t size =
            send_row(link, PySequence_Fast_GET_ITEM(rows, i), PySequence_Fast_GET_ITEM(fronts, i), args[3]);

        if (size < 0)
            goto failed;
        total += size;
    }
    Py_DECREF(rows);
    Py_DECREF(fronts);
    return PyLong_FromSsize_t(total);

failed:
    Py_DECREF(rows);
    Py_XDECREF(fronts);
    return NULL;
}

PyDoc_STRVAR(take_outcomes_doc,
             "take_outcomes($module, collector, unsettled, accepted, confirm, /)\n--\n\n"
             "Take off the events on top that say \"accepted\" of deliveries in unsettled. The ids of those go to\n"
             "accepted. Those that their receiver has not settled get the outcome, and go to confirm; the others are\n"
             "settled. Returns how many there were.");

static PyObject *
take_outcomes(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;
    struct pn_event_t *event;
    Py_ssize_t taken = 0;

    if (!has_arguments(given, 4) || (collector = structure_at(args[0])) == NULL ||
        !is_so(PyDict_CheckExact(args[1]), "unsettled is a dict") ||
        !is_so(PyList_CheckExact(args[2]), "accepted is a list") ||
        !is_so(PyList_CheckExact(args[3]), "confirm is a list"))
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
        /* An event holds on to its delivery: one that is still here by its address is the one that was put here. */
        id = PyDict_GetItemWithError(args[1], address);
        if (id == NULL) {
            Py_DECREF(address);
            if (PyErr_Occurred())
                return NULL;
            break;
        }
        is_settled = engine.pn_delivery_settled(delivery);
        if (PyList_Append(args[2], id) < 0 || (!is_settled && PyList_Append(args[3], address) < 0) ||
            PyDict_DelItem(args[1], address) < 0)
            result = -1;
        Py_DECREF(address);
        if (result < 0)
            return NULL;
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
                       "What the engine has to write now, some 256 KB of it; empty when there is nothing, or it is\n"
                       "closed.");

static PyObject *
pull(PyObject *Py_UNUSED(module), PyObject *address)
{
    struct pn_transport_t *transport = structure_at(address);
    PyObject *data = NULL;
    Py_ssize_t total = 0;
    ssize_t size;

    if (transport == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    size = engine.pn_transport_pending(transport);
    Py_END_ALLOW_THREADS
    while (size > 0 && total < OUTPUT_BYTES) {
        if (data == NULL)
            data = PyBytes_FromStringAndSize(NULL, size);
        else
            _PyBytes_Resize(&data, total + size);
        if (data == NULL)
            return NULL;
        if (engine.pn_transport_peek(transport, PyBytes_AS_STRING(data) + total, (size_t)size) != size) {
            Py_DECREF(data);
            PyErr_SetString(PyExc_SystemError, "the engine gave less of its output than it had");
            return NULL;
        }
        total += size;
        /* With its buffer empty, the engine writes what comes next: that takes the time. */
        Py_BEGIN_ALLOW_THREADS
        engine.pn_transport_pop(transport, (size_t)size);
        size = engine.pn_transport_pending(transport);
        Py_END_ALLOW_THREADS
    }
    return data == NULL ? PyBytes_FromStringAndSize(NULL, 0) : data;
}

/* ---------------------------------------------------------------------------------------------------- the module */

#define METHOD(name, function, flags, doc) {name, (PyCFunction)(void (*)(void))function, flags, doc}

static PyMethodDef methods[] = {
    METHOD("bind", bind, METH_O, bind_doc),
    METHOD("top", top, METH_O, top_doc),
    METHOD("skip", skip, METH_FASTCALL, skip_doc),
    METHOD("drop", drop, METH_O, drop_doc),
    METHOD("delivery_on_top", delivery_on_top, METH_O, delivery_on_top_doc),
    METHOD("take_messages", take_messages, METH_FASTCALL, take_messages_doc),
    METHOD("discard", discard, METH_O, discard_doc),
    METHOD("settle", settle, METH_FASTCALL, settle_doc),
    METHOD("send", send_rows, METH_FASTCALL, send_doc),
    METHOD("take_outcomes", take_outcomes, METH_FASTCALL, take_outcomes_doc),
    METHOD("pull", pull, METH_O, pull_doc),
    {NULL, NULL, 0, NULL},
};

static int
fill(PyObject *module)
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

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gateway.amqp.engine._transfers",
    .m_doc = "What happens once a message on the wire, in C (see native_loops).",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__transfers(void)
{
    return PyModuleDef_Init(&definition);
}
