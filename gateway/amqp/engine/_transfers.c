/*
 * What happens once a message on the wire, in C: the loops of native_loops.
 *
 * Each function does for many deliveries what one of the same name in python_loops does, and nothing else: which
 * messages go where, how many, and who may, is said in Python. That module is the fallback and the oracle of this one.
 *
 * The engine's functions come as pointers (bind), so that the engine is in the process once, and this module links to
 * nothing. Its structures come as plain integers, their addresses; 0 is none. What python_loops says of their lives holds
 * here all the more: an address is worth as much as the link it came from, and the callers let go of both together.
 *
 * The interpreter lock is held, except while the engine writes its output (pull): what else is done is short.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>
#include <sys/types.h>

/* ------------------------------------------------------------------------------------------------- the engine --- */

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

/* What is called: what it returns, its name, what it takes, in the words of cffi, which has them compared. */
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

#define FIELD(returns, name, takes) returns(*name) takes;
static struct {
    ENGINE(FIELD)
} engine;

#define DESCRIPTION(returns, name, takes) {#name, #returns "(*)" #takes, &engine.name, sizeof engine.name},
static const struct {
    const char *name;
    const char *signature;
    void *place;
    size_t size;
} functions[] = {ENGINE(DESCRIPTION)};

#define FUNCTION_COUNT (sizeof functions / sizeof *functions)

static _Bool is_bound = 0;

/* Numbers of the engine, and of AMQP 1.0. */
enum { LINK_FLOW = 26, DELIVERY = 28, TRANSPORT = 29 };
enum { ACCEPTED = 0x24, TRANSACTIONAL = 0x34 };

/* Why take_messages has stopped. */
enum { NOTHING, TURN, ALONE, BATCH };

/* Places in a row. */
enum { ROW_ID = 0, ROW_BARE = 3, ROW_CONTENT = 6, ROW_SIZE = 7 };

#define OUTPUT_BYTES (256 * 1024) /* what is pulled at once, about */

/* ------------------------------------------------------------------------------------------------- arguments --- */

/* The arguments are so many, and the engine is there. */
static int
is_called_well(const char *name, Py_ssize_t given, Py_ssize_t taken)
{
    if (given != taken) {
        PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, not %zd", name, taken, given);
        return 0;
    }
    if (!is_bound) {
        PyErr_Format(PyExc_RuntimeError, "%s() before bind()", name);
        return 0;
    }
    return 1;
}

/* A structure of the engine's; NULL with an error set where the integer is none, or 0. */
static void *
structure_at(PyObject *address)
{
    void *found = PyLong_AsVoidPtr(address);

    if (found == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ValueError, "0 is no structure of the engine's");
    return found;
}

static int
is_a(PyObject *object, int is_so, const char *what)
{
    if (!is_so)
        PyErr_Format(PyExc_TypeError, "%s, not %.100s", what, Py_TYPE(object)->tp_name);
    return is_so;
}

PyDoc_STRVAR(bind_doc, "bind($module, addresses, /)\n--\n\n"
                       "Take the addresses of the engine's functions, by name: all that SIGNATURES has.");

static PyObject *
bind(PyObject *module, PyObject *addresses)
{
    void *found[FUNCTION_COUNT];

    (void)module;
    if (!is_a(addresses, PyDict_Check(addresses), "addresses are a dict"))
        return NULL;
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        PyObject *address = PyDict_GetItemString(addresses, functions[i].name);

        if (address == NULL) {
            PyErr_SetString(PyExc_KeyError, functions[i].name);
            return NULL;
        }
        found[i] = structure_at(address);
        if (found[i] == NULL)
            return NULL;
    }
    for (size_t i = 0; i < FUNCTION_COUNT; i++)
        memcpy(functions[i].place, &found[i], functions[i].size);
    is_bound = 1;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------------------------------------ events --- */

PyDoc_STRVAR(top_doc, "top($module, collector, /)\n--\n\n"
                      "The type of the event on top of a collector, and its link where it is of a delivery or a flow,\n"
                      "else 0. None where there is no event. Events of the transport are taken off: nobody is told.");

static PyObject *
top(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;
    struct pn_event_t *event;

    (void)module;
    if (!is_called_well("top", given, 1) || (collector = structure_at(args[0])) == NULL)
        return NULL;
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        int kind = engine.pn_event_type(event);
        struct pn_link_t *link = NULL;

        if (kind == TRANSPORT) {
            engine.pn_collector_pop(collector);
            continue;
        }
        if (kind == DELIVERY || kind == LINK_FLOW)
            link = engine.pn_event_link(event);
        return Py_BuildValue("(iN)", kind, PyLong_FromVoidPtr(link));
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(skip_doc, "skip($module, collector, kind, link, /)\n--\n\n"
                       "Take off the events on top that are of this type and link, however many there are.");

static PyObject *
skip(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;
    struct pn_link_t *link;
    struct pn_event_t *event;
    long wanted;

    (void)module;
    if (!is_called_well("skip", given, 3) || (collector = structure_at(args[0])) == NULL)
        return NULL;
    wanted = PyLong_AsLong(args[1]);
    if ((wanted == -1 && PyErr_Occurred()) || (link = structure_at(args[2])) == NULL)
        return NULL;
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        int kind = engine.pn_event_type(event);

        if (kind != TRANSPORT && (kind != wanted || engine.pn_event_link(event) != link))
            break;
        engine.pn_collector_pop(collector);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(drop_doc, "drop($module, collector, /)\n--\n\n"
                       "Take the event off that is on top of a collector: it was dealt with.");

static PyObject *
drop(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;

    (void)module;
    if (!is_called_well("drop", given, 1) || (collector = structure_at(args[0])) == NULL)
        return NULL;
    engine.pn_collector_pop(collector);
    Py_RETURN_NONE;
}

/* -------------------------------------------------------------------------------------- messages that come in --- */

/* What a delivery has brought, all of it, as bytes. */
static PyObject *
content_of(struct pn_link_t *link, size_t size)
{
    PyObject *content = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);

    if (content == NULL || size == 0)
        return content;
    if (engine.pn_link_recv(link, PyBytes_AS_STRING(content), size) != (ssize_t)size) {
        Py_DECREF(content);
        PyErr_SetString(PyExc_SystemError, "the engine gave less than it had");
        return NULL;
    }
    return content;
}

/* Whether a delivery is a batch, as is_batch says of its tag; -1 with an error set. */
static int
is_batch_delivery(PyObject *is_batch, struct pn_delivery_t *delivery)
{
    struct pn_bytes_t tag;
    PyObject *bytes, *said;
    int is_so;

    if (is_batch == Py_None)
        return 0;
    tag = engine.pn_delivery_tag(delivery);
    bytes = PyBytes_FromStringAndSize(tag.start, (Py_ssize_t)tag.size);
    if (bytes == NULL)
        return -1;
    said = PyObject_CallOneArg(is_batch, bytes);
    Py_DECREF(bytes);
    if (said == NULL)
        return -1;
    is_so = PyObject_IsTrue(said);
    Py_DECREF(said);
    return is_so;
}

/* Append a new reference, and let go of it. */
static int
append_new(PyObject *list, PyObject *item)
{
    int result;

    if (item == NULL)
        return -1;
    result = PyList_Append(list, item);
    Py_DECREF(item);
    return result;
}

PyDoc_STRVAR(take_messages_doc,
             "take_messages($module, link, max_bytes, is_batch, /)\n--\n\n"
             "Take the messages of a link that are complete, up to one that goes alone, or is settled unlike those\n"
             "before it. Returns their contents; their deliveries, or None where they came settled; and why it stopped:\n"
             "NOTHING (there are no more), TURN (call again), ALONE (the current one is too large, aborted or of a\n"
             "transaction), BATCH (is_batch says so of its tag; None for no such question). is_batch must leave the\n"
             "engine alone.");

static PyObject *
take_messages(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_link_t *link;
    struct pn_delivery_t *delivery;
    size_t max_bytes;
    PyObject *contents = NULL, *deliveries = NULL;
    int why = NOTHING;
    _Bool are_settled = 0;

    (void)module;
    if (!is_called_well("take_messages", given, 3) || (link = structure_at(args[0])) == NULL)
        return NULL;
    max_bytes = PyLong_AsSize_t(args[1]);
    if (max_bytes == (size_t)-1 && PyErr_Occurred())
        return NULL;
    contents = PyList_New(0);
    if (contents == NULL)
        return NULL;
    while ((delivery = engine.pn_link_current(link)) != NULL) {
        size_t size = engine.pn_delivery_pending(delivery);
        _Bool is_settled;
        int is_batch;

        /* The engine drops what an aborted delivery had brought: only an empty one can be one. */
        if (size > max_bytes || (size == 0 && engine.pn_delivery_aborted(delivery))) {
            why = ALONE;
            break;
        }
        if (engine.pn_delivery_partial(delivery))
            break;
        /* Each is asked, with a coordinator or without: a message of an unknown transaction must not exist. */
        if (engine.pn_delivery_remote_state(delivery) == TRANSACTIONAL) {
            why = ALONE;
            break;
        }
        is_settled = engine.pn_delivery_settled(delivery);
        if (PyList_GET_SIZE(contents) == 0) {
            are_settled = is_settled;
        } else if (is_settled != are_settled) {
            why = TURN;
            break;
        }
        is_batch = is_batch_delivery(args[2], delivery);
        if (is_batch < 0)
            goto failed;
        if (is_batch) {
            why = BATCH;
            break;
        }
        if (append_new(contents, content_of(link, size)) < 0)
            goto failed;
        if (!is_settled) {
            if (deliveries == NULL && (deliveries = PyList_New(0)) == NULL)
                goto failed;
            if (append_new(deliveries, PyLong_FromVoidPtr(delivery)) < 0)
                goto failed;
        }
        engine.pn_link_advance(link);
        if (is_settled)
            engine.pn_delivery_settle(delivery);
    }
    if (deliveries == NULL)
        deliveries = Py_NewRef(Py_None);
    return Py_BuildValue("(NNi)", contents, deliveries, why);

failed:
    Py_DECREF(contents);
    Py_XDECREF(deliveries);
    return NULL;
}

PyDoc_STRVAR(discard_doc, "discard($module, link, /)\n--\n\n"
                          "Let go of transfers that came on a link and that nobody reads.");

static PyObject *
discard(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_link_t *link;
    struct pn_delivery_t *delivery;

    (void)module;
    if (!is_called_well("discard", given, 1) || (link = structure_at(args[0])) == NULL)
        return NULL;
    if (engine.pn_link_is_receiver(link)) {
        while ((delivery = engine.pn_link_current(link)) != NULL) {
            engine.pn_link_advance(link);
            engine.pn_delivery_settle(delivery);
        }
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(settle_doc, "settle($module, deliveries, outcome, /)\n--\n\n"
                         "Settle the deliveries of a list, with an outcome; 0 for none but what they have.");

static PyObject *
settle(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    uint64_t outcome;

    (void)module;
    if (!is_called_well("settle", given, 2) || !is_a(args[0], PyList_Check(args[0]), "deliveries are a list"))
        return NULL;
    outcome = PyLong_AsUnsignedLongLong(args[1]);
    if (outcome == (uint64_t)-1 && PyErr_Occurred())
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[0]); i++) {
        struct pn_delivery_t *delivery = structure_at(PyList_GET_ITEM(args[0], i));

        if (delivery == NULL)
            return NULL;
        if (outcome)
            engine.pn_delivery_update(delivery, outcome);
        engine.pn_delivery_settle(delivery);
    }
    Py_RETURN_NONE;
}

/* -------------------------------------------------------------------------------------------- messages that go out --- */

/* Bytes go to the current delivery of a link; the engine copies them. */
static int
give(struct pn_link_t *link, const char *data, Py_ssize_t size)
{
    if (size > 0 && engine.pn_link_send(link, (char *)data, (size_t)size) != size) {
        PyErr_SetString(PyExc_SystemError, "the engine did not take a message");
        return -1;
    }
    return 0;
}

/* Send one message; what its content has in bytes, or -1 with an error set. */
static Py_ssize_t
send_row(struct pn_link_t *link, PyObject *row, PyObject *front, PyObject *unsettled)
{
    PyObject *content, *address;
    Py_ssize_t size, bare;
    int64_t id;
    struct pn_bytes_t tag = {sizeof id, (char *)&id};
    struct pn_delivery_t *delivery;
    int result;

    if (!is_a(row, PyTuple_Check(row) && PyTuple_GET_SIZE(row) == ROW_SIZE, "a row is a tuple of seven") ||
        !is_a(front, PyBytes_Check(front), "a front is bytes"))
        return -1;
    content = PyTuple_GET_ITEM(row, ROW_CONTENT);
    if (!is_a(content, PyBytes_Check(content), "a content is bytes"))
        return -1;
    size = PyBytes_GET_SIZE(content);
    bare = PyLong_AsSsize_t(PyTuple_GET_ITEM(row, ROW_BARE));
    id = PyLong_AsLongLong(PyTuple_GET_ITEM(row, ROW_ID));
    if (PyErr_Occurred())
        return -1;
    if (bare < 0 || bare > size) {
        PyErr_SetString(PyExc_ValueError, "a bare message begins within its content");
        return -1;
    }
    delivery = engine.pn_delivery(link, tag);
    if (delivery == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (give(link, PyBytes_AS_STRING(front), PyBytes_GET_SIZE(front)) < 0 ||
        give(link, PyBytes_AS_STRING(content) + bare, size - bare) < 0)
        return -1;
    engine.pn_link_advance(link);
    if (unsettled == Py_None) {
        engine.pn_delivery_settle(delivery);
        return size;
    }
    address = PyLong_FromVoidPtr(delivery);
    if (address == NULL)
        return -1;
    result = PyDict_SetItem(unsettled, address, PyTuple_GET_ITEM(row, ROW_ID));
    Py_DECREF(address);
    return result < 0 ? -1 : size;
}

PyDoc_STRVAR(send_doc, "send($module, link, rows, fronts, unsettled, /)\n--\n\n"
                       "Send messages, each with its front before its bare message. Their ids are noted in unsettled by\n"
                       "delivery; None for those that go out settled. Returns the bytes of their contents. The link must\n"
                       "have credit for them.");

static PyObject *
send_rows(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_link_t *link;
    Py_ssize_t total = 0;

    (void)module;
    if (!is_called_well("send", given, 4) || (link = structure_at(args[0])) == NULL ||
        !is_a(args[1], PyList_Check(args[1]), "rows are a list") ||
        !is_a(args[2], PyList_Check(args[2]), "fronts are a list") ||
        !is_a(args[3], args[3] == Py_None || PyDict_CheckExact(args[3]), "unsettled is a dict or None"))
        return NULL;
    if (PyList_GET_SIZE(args[1]) != PyList_GET_SIZE(args[2])) {
        PyErr_SetString(PyExc_ValueError, "there are as many fronts as rows");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); i++) {
        Py_ssize_t size = send_row(link, PyList_GET_ITEM(args[1], i), PyList_GET_ITEM(args[2], i), args[3]);

        if (size < 0)
            return NULL;
        total += size;
    }
    return PyLong_FromSsize_t(total);
}

PyDoc_STRVAR(take_outcomes_doc,
             "take_outcomes($module, collector, unsettled, accepted, confirm, /)\n--\n\n"
             "Take off the events on top that say \"accepted\" of deliveries in unsettled. The ids of those go to\n"
             "accepted; deliveries that their receiver has settled are settled, the others get the outcome and go to\n"
             "confirm. Returns how many there were.");

static PyObject *
take_outcomes(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_collector_t *collector;
    struct pn_event_t *event;
    PyObject *unsettled, *accepted, *confirm;
    Py_ssize_t taken = 0;

    (void)module;
    if (!is_called_well("take_outcomes", given, 4) || (collector = structure_at(args[0])) == NULL)
        return NULL;
    unsettled = args[1];
    accepted = args[2];
    confirm = args[3];
    if (!is_a(unsettled, PyDict_CheckExact(unsettled), "unsettled is a dict") ||
        !is_a(accepted, PyList_Check(accepted), "accepted is a list") ||
        !is_a(confirm, PyList_Check(confirm), "confirm is a list"))
        return NULL;
    /* An event holds on to its delivery: one that is still in unsettled by its address is the one that was put there. */
    while ((event = engine.pn_collector_peek(collector)) != NULL) {
        struct pn_delivery_t *delivery = engine.pn_event_delivery(event);
        PyObject *address, *id;
        int result;

        if (delivery == NULL || engine.pn_delivery_remote_state(delivery) != ACCEPTED)
            break;
        address = PyLong_FromVoidPtr(delivery);
        if (address == NULL)
            return NULL;
        id = PyDict_GetItemWithError(unsettled, address);
        if (id == NULL) {
            Py_DECREF(address);
            if (PyErr_Occurred())
                return NULL;
            break;
        }
        result = PyList_Append(accepted, id);
        if (result == 0 && !engine.pn_delivery_settled(delivery))
            result = PyList_Append(confirm, address);
        if (result == 0)
            result = PyDict_DelItem(unsettled, address);
        Py_DECREF(address);
        if (result < 0)
            return NULL;
        if (engine.pn_delivery_settled(delivery))
            engine.pn_delivery_settle(delivery);
        else
            engine.pn_delivery_update(delivery, ACCEPTED);
        engine.pn_collector_pop(collector);
        taken++;
    }
    return PyLong_FromSsize_t(taken);
}

/* ---------------------------------------------------------------------------------------------------- the output --- */

PyDoc_STRVAR(pull_doc, "pull($module, transport, /)\n--\n\n"
                       "What the engine has to write now, some 256 KB of it at most; empty when there is nothing, or it\n"
                       "is closed.");

static PyObject *
pull(PyObject *module, PyObject *const *args, Py_ssize_t given)
{
    struct pn_transport_t *transport;
    PyObject *data = NULL;
    Py_ssize_t total = 0;

    (void)module;
    if (!is_called_well("pull", given, 1) || (transport = structure_at(args[0])) == NULL)
        return NULL;
    while (total < OUTPUT_BYTES) {
        ssize_t size, copied;

        Py_BEGIN_ALLOW_THREADS
        size = engine.pn_transport_pending(transport);
        Py_END_ALLOW_THREADS
        if (size <= 0)
            break;
        if (data == NULL)
            data = PyBytes_FromStringAndSize(NULL, size);
        else if (_PyBytes_Resize(&data, total + size) < 0)
            return NULL;
        if (data == NULL)
            return NULL;
        copied = engine.pn_transport_peek(transport, PyBytes_AS_STRING(data) + total, (size_t)size);
        if (copied != size) {
            Py_DECREF(data);
            PyErr_SetString(PyExc_SystemError, "the engine gave less output than it had");
            return NULL;
        }
        engine.pn_transport_pop(transport, (size_t)size);
        total += size;
    }
    return data == NULL ? PyBytes_FromStringAndSize(NULL, 0) : data;
}

/* ---------------------------------------------------------------------------------------------------- the module --- */

#define METHOD(name, function) {#name, (PyCFunction)(void (*)(void))(function), METH_FASTCALL, function##_doc}
#define send_rows_doc send_doc

static PyMethodDef methods[] = {
    {"bind", bind, METH_O, bind_doc},
    METHOD(top, top),
    METHOD(skip, skip),
    METHOD(drop, drop),
    METHOD(take_messages, take_messages),
    METHOD(discard, discard),
    METHOD(settle, settle),
    METHOD(send, send_rows),
    METHOD(take_outcomes, take_outcomes),
    METHOD(pull, pull),
    {NULL, NULL, 0, NULL},
};

static int
fill(PyObject *module)
{
    PyObject *signatures = PyDict_New();

    if (signatures == NULL)
        return -1;
    for (size_t i = 0; i < FUNCTION_COUNT; i++) {
        PyObject *signature = PyUnicode_FromString(functions[i].signature);
        int result = signature == NULL ? -1 : PyDict_SetItemString(signatures, functions[i].name, signature);

        Py_XDECREF(signature);
        if (result < 0) {
            Py_DECREF(signatures);
            return -1;
        }
    }
    if (PyModule_AddObjectRef(module, "SIGNATURES", signatures) < 0) {
        Py_DECREF(signatures);
        return -1;
    }
    Py_DECREF(signatures);
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, fill},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gateway.amqp.engine._transfers",
    .m_doc = "What happens once a message on the wire, in C.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__transfers(void)
{
    return PyModuleDef_Init(&definition);
}
