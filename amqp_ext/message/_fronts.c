/*
 * Whether messages begin alike. sections.py has the same in Python, which takes ten times as long. It is called for all
 * messages that come and go, up to three times.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

PyDoc_STRVAR(all_begin_with_doc, "all_begin_with($module, front, contents, behind, /)\n--\n\n"
             "Whether each of a list of bytes has this front, and so many bytes after it.");
static PyObject *all_begin_with(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *contents;
    const char *front;
    Py_ssize_t size, behind, count;

    if (!PyArg_ParseTuple(args, "y#O!n:all_begin_with", &front, &size, &PyList_Type, &contents, &behind))
        return NULL;
    count = PyList_Size(contents);
    for (Py_ssize_t i = 0; i < count; i++) {
        char *content;
        Py_ssize_t its_size;
        if (PyBytes_AsStringAndSize(PyList_GetItem(contents, i), &content, &its_size) < 0)
            return NULL;
        if (its_size - size < behind || its_size < size || memcmp(content, front, (size_t)size) != 0)
            return PyBool_FromLong(0);
    }
    return PyBool_FromLong(1);
}

static PyMethodDef methods[] = {
    {"all_begin_with", all_begin_with, METH_VARARGS, all_begin_with_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "amqp_ext.message._fronts",
    .m_doc = "Messages that begin alike (see sections).",
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__fronts(void)
{
    return PyModuleDef_Init(&definition);
}
