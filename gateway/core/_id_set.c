/*
 * A set of bytes for windows of a million ids that come and go at the same rate. gateway.core.dedup uses it in place of
 * the builtin set, because it is faster.
 *
 * In a builtin set of that size, each lookup waits for memory, some 0.1 us. And a builtin set that ids leave is rebuilt
 * every few hundred thousand ids, which blocks the event loop for 30 ms. Here the ids of a list are looked up together:
 * while one id is compared, the memory for the next ones is being loaded. And an id that leaves is replaced by an id
 * that was stored after it, so that the set is rebuilt only to grow, or once most ids have left.
 *
 * Places are found by open addressing with linear probing (Knuth, volume 3, 6.4, algorithms L and R), by Python's hash
 * of bytes, which is random, so that no publisher can foresee it.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

typedef struct {
    Py_hash_t hash;
    PyObject *id; /* NULL: free */
} Place;

typedef struct {
    PyObject_HEAD
    Place *places;
    size_t mask; /* number of places (a power of two) minus 1 */
    size_t used;
} IdSet;

enum { FEWEST_PLACES = 64, TOGETHER = 32 };

static inline void expect(const void *address)
{
#if defined(__GNUC__)
    __builtin_prefetch(address);
#else
    (void)address;
#endif
}

static int same(PyObject *one, PyObject *other)
{
    char *a, *b;
    Py_ssize_t size, other_size;

    if (one == other)
        return 1;
    if (PyBytes_AsStringAndSize(one, &a, &size) < 0 || PyBytes_AsStringAndSize(other, &b, &other_size) < 0)
        return -1; /* cannot happen: both are known to be bytes */
    return size == other_size && memcmp(a, b, (size_t)size) == 0;
}

/* The place of an id, or the free place where it would be put. */
static size_t find(const IdSet *self, PyObject *id, Py_hash_t hash)
{
    size_t at = (size_t)hash & self->mask;

    while (self->places[at].id != NULL && !(self->places[at].hash == hash && same(self->places[at].id, id) > 0))
        at = (at + 1) & self->mask;
    return at;
}

static int resize(IdSet *self, size_t wanted)
{
    size_t count = FEWEST_PLACES;
    Place *before = self->places, *places;
    size_t mask = self->mask;

    while (count < wanted)
        count *= 2;
    places = PyMem_Calloc(count, sizeof *places);
    if (places == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->places = places;
    self->mask = count - 1;
    for (size_t i = 0; before != NULL && i <= mask; i++) {
        if (before[i].id != NULL) {
            size_t at = (size_t)before[i].hash & self->mask;
            while (places[at].id != NULL)
                at = (at + 1) & self->mask;
            places[at] = before[i];
        }
    }
    PyMem_Free(before);
    return 0;
}

/* Remove an id, and move up ids after it that are there because their own places were taken. */
static void take_out(IdSet *self, size_t at)
{
    Place *places = self->places;
    PyObject *gone = places[at].id;

    for (size_t next = (at + 1) & self->mask; places[next].id != NULL; next = (next + 1) & self->mask) {
        size_t home = (size_t)places[next].hash & self->mask;
        if (((next - home) & self->mask) >= ((next - at) & self->mask)) {
            places[at] = places[next];
            at = next;
        }
    }
    places[at].id = NULL;
    self->used--;
    Py_DECREF(gone);
}

/*
 * Visit a list of ids in groups: while one id is visited, the memory for the next ones is being loaded. Returns 1 if
 * visit ended the loop, else 0; -1 with an error set.
 */
static inline int each(IdSet *self, PyObject *list, int (*visit)(IdSet *, PyObject *, Py_hash_t))
{
    PyObject *ids[TOGETHER];
    Py_hash_t hashes[TOGETHER];
    Py_ssize_t size, count;

    if (!PyList_Check(list)) {
        PyErr_Format(PyExc_TypeError, "ids are given in a list, not in %R", (PyObject *)Py_TYPE(list));
        return -1;
    }
    size = PyList_Size(list);
    for (Py_ssize_t from = 0; from < size; from += count) {
        count = size - from < TOGETHER ? size - from : TOGETHER;
        for (Py_ssize_t i = 0; i < count; i++) {
            ids[i] = PyList_GetItem(list, from + i);
            expect(ids[i]);
        }
        for (Py_ssize_t i = 0; i < count; i++) {
            if (!PyBytes_CheckExact(ids[i])) { /* a subclass could run its own code as the hash */
                PyErr_Format(PyExc_TypeError, "an id is bytes, not %R", (PyObject *)Py_TYPE(ids[i]));
                return -1;
            }
            hashes[i] = PyObject_Hash(ids[i]);
            expect(&self->places[(size_t)hashes[i] & self->mask]);
        }
        for (Py_ssize_t i = 0; i < count; i++)
            if (visit(self, ids[i], hashes[i]))
                return 1;
    }
    return 0;
}

static int has(IdSet *self, PyObject *id, Py_hash_t hash)
{
    return self->places[find(self, id, hash)].id != NULL;
}

static int put_in(IdSet *self, PyObject *id, Py_hash_t hash)
{
    Place *place = &self->places[find(self, id, hash)];

    if (place->id == NULL) {
        Py_INCREF(id);
        *place = (Place){hash, id};
        self->used++;
    }
    return 0;
}

static int drop(IdSet *self, PyObject *id, Py_hash_t hash)
{
    size_t at = find(self, id, hash);

    if (self->places[at].id != NULL)
        take_out(self, at);
    return 0;
}

PyDoc_STRVAR(isdisjoint_doc, "isdisjoint(ids: list[bytes]) -> bool\n\nWhether the set has none of these ids.");

static PyObject *isdisjoint(PyObject *object, PyObject *list)
{
    int found = each((IdSet *)object, list, has);

    return found < 0 ? NULL : PyBool_FromLong(!found);
}

PyDoc_STRVAR(update_doc, "update(ids: list[bytes]) -> None\n\nAdd these ids.");

static PyObject *update(PyObject *object, PyObject *list)
{
    IdSet *self = (IdSet *)object;
    size_t all = self->used + (PyList_Check(list) ? (size_t)PyList_Size(list) : 0);

    if (all > (self->mask + 1) / 3 * 2 && resize(self, 2 * all) < 0)
        return NULL;
    if (each(self, list, put_in) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyDoc_STRVAR(difference_update_doc, "difference_update(ids: list[bytes]) -> None\n\nRemove these ids.");

static PyObject *difference_update(PyObject *object, PyObject *list)
{
    IdSet *self = (IdSet *)object;

    if (each(self, list, drop) < 0)
        return NULL;
    if (self->mask + 1 > FEWEST_PLACES && self->used < (self->mask + 1) / 16 && resize(self, 4 * self->used) < 0)
        PyErr_Clear(); /* not shrunk: the set keeps its size */
    Py_RETURN_NONE;
}

static int contains(PyObject *object, PyObject *id)
{
    IdSet *self = (IdSet *)object;

    return PyBytes_CheckExact(id) && has(self, id, PyObject_Hash(id));
}

static Py_ssize_t length(PyObject *object)
{
    return (Py_ssize_t)((IdSet *)object)->used;
}

static PyObject *make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    IdSet *self;

    if (PyTuple_Size(args) > 0 || keywords != NULL) {
        PyErr_SetString(PyExc_TypeError, "an IdSet takes no arguments");
        return NULL;
    }
    self = (IdSet *)PyType_GenericAlloc(type, 0);
    if (self != NULL && resize(self, FEWEST_PLACES) < 0) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static void unmake(PyObject *object)
{
    IdSet *self = (IdSet *)object;
    PyTypeObject *type = Py_TYPE(object);
    freefunc freed = (freefunc)PyType_GetSlot(type, Py_tp_free);

    for (size_t i = 0; self->places != NULL && i <= self->mask; i++)
        Py_XDECREF(self->places[i].id);
    PyMem_Free(self->places);
    freed(object);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"isdisjoint", isdisjoint, METH_O, isdisjoint_doc},
    {"update", update, METH_O, update_doc},
    {"difference_update", difference_update, METH_O, difference_update_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "A set of bytes (see _id_set.c)."},
    {Py_tp_new, make},
    {Py_tp_dealloc, unmake},
    {Py_tp_methods, methods},
    {Py_sq_contains, contains},
    {Py_sq_length, length},
    {0, NULL},
};

static PyType_Spec type_spec = {
    .name = "gateway.core._id_set.IdSet",
    .basicsize = sizeof(IdSet),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = type_slots,
};

static int fill(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&type_spec);
    int result = type == NULL ? -1 : PyModule_AddObjectRef(module, "IdSet", type);

    Py_XDECREF(type);
    return result;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, fill}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "gateway.core._id_set",
    .m_doc = "A set of ids (see dedup).",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__id_set(void)
{
    return PyModuleDef_Init(&definition);
}
