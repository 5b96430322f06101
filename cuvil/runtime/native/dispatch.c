/* The short way from a Python call to compiled code: a CPython extension with three types.
 *
 *   Program  one compiled program: its entry point, its tables of kernels and constants, and spare workspaces.
 *   Plan     what one set of symbol values fixes for a Program: offsets in the arena, output shapes.
 *   Calls    the calls that a jitted function has met: (structure, dtypes, shapes) of the arguments to Program and Plan.
 *
 * Calls.run reads the arguments of a call into a sequence of words that names their structure, dtypes and shapes, finds
 * the entry with the same words, and runs its program: no Python code, and in a process that is warm no heap memory but
 * that of the outputs (and of copies of inputs whose elements do not lie one after the other). It knows exact tuple,
 * list, dict with str keys, None, numpy.ndarray in native byte order, bool, int and float; for all else, and for calls
 * not met before, it gives NotImplemented, and the caller goes the general way and then calls Calls.add.
 *
 * Locks. The GIL guards every list in here; nothing runs Python code or lets go of the GIL while one is in flux. A call
 * owns a frame (of its Calls) and a workspace (of its Program) from a free list, so threads never share them; it lets
 * go of the GIL while native code runs unless its plan says that this takes about as long as the letting go. References
 * to all that the call needs are taken before either happens. After a fork the child keeps what was spare.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#include <numpy/arrayobject.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)
#define HUGE_FROM ((size_t)4 << 20) /* where NumPy, too, begins to ask for huge pages */
#define MAX_DEPTH 64                /* of nested containers; deeper ones go the general way */

typedef int32_t (*entry_point)(void *ctx, void *const *kernel, void *const *in, void *const *out, void *const *konst,
                               void *const *packed, void *const *slot, const int64_t *sym);

/* ---------------------------------------------------------------- Plan */

typedef struct {
    PyObject_HEAD
    uint64_t serial;  /* told apart by number: an address may be used again */
    uint64_t program; /* the number of the Program that made it */
    int64_t *numbers; /* one block: symbols, offsets, then the outputs' extents */
    int64_t *symbols, *offsets, *extents;
    size_t arena;
    int releases; /* whether the GIL is let go during the native call */
} Plan;

static void plan_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyMem_Free(((Plan *)self)->numbers);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot plan_slots[] = {
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_doc, "What one set of symbol values fixes for a Program."},
    {0, NULL},
};

static PyType_Spec plan_spec = {
    .name = "cuvil_dispatch.Plan",
    .basicsize = sizeof(Plan),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = plan_slots,
};

static PyTypeObject *plan_type, *program_type, *calls_type;

/* ---------------------------------------------------------------- Program */

/* What one running call needs; kept for the next. */
typedef struct workspace {
    struct workspace *next;
    void *ctx;
    char *arena;
    size_t arena_bytes;
    uint64_t placed; /* the number of the plan whose slots are filled in for this arena, or 0 */
    void **in, **out, **slot;
    PyObject **results; /* this call's outputs; NULL between calls */
    PyObject **copies;  /* contiguous copies of inputs, or NULL */
} workspace;

typedef struct {
    PyObject_HEAD
    uint64_t serial;
    entry_point main;
    void **kernels, **konst, **packed;
    void *pool;
    void *(*ctx_create)(void *pool);
    void (*ctx_destroy)(void *ctx);
    int (*ctx_error)(const void *ctx, int64_t details[3]);
    void (*ctx_reset)(void *ctx);
    Py_ssize_t inputs, outputs, slots, symbols;
    PyArray_Descr **dtypes; /* of the outputs */
    int *ranks;
    PyObject *on_error; /* on_error(code, a, b, site) raises */
    PyObject *keep;     /* what owns the memory behind the pointers */
    workspace *spare;
} Program;

static uint64_t serials; /* of programs and plans; 0 is none */

static void workspace_free(Program *p, workspace *w) {
    if (w->ctx) p->ctx_destroy(w->ctx);
    free(w->arena);
    PyMem_Free(w);
}

static workspace *workspace_take(Program *p) {
    workspace *w = p->spare;
    if (w) {
        p->spare = w->next;
        return w;
    }
    size_t pointers = (size_t)(p->inputs * 2 + p->outputs * 2 + p->slots);
    w = PyMem_Calloc(1, sizeof *w + pointers * sizeof(void *));
    if (!w) {
        PyErr_NoMemory();
        return NULL;
    }
    w->in = (void **)(w + 1);
    w->out = w->in + p->inputs;
    w->slot = w->out + p->outputs;
    w->results = (PyObject **)(w->slot + p->slots);
    w->copies = w->results + p->outputs;
    w->ctx = p->ctx_create(p->pool);
    if (!w->ctx) {
        workspace_free(p, w);
        PyErr_SetString(PyExc_MemoryError, "no memory for a runtime context");
        return NULL;
    }
    return w;
}

/* Gives the workspace back, and lets go of what is left of the call in it. */
static void workspace_give(Program *p, workspace *w) {
    for (Py_ssize_t k = 0; k < p->outputs; k++) Py_CLEAR(w->results[k]);
    for (Py_ssize_t k = 0; k < p->inputs; k++) Py_CLEAR(w->copies[k]);
    w->next = p->spare;
    p->spare = w;
}

static int workspace_place(Program *p, workspace *w, const Plan *plan) {
    if (w->arena_bytes < plan->arena || !w->arena) {
        free(w->arena);
        w->arena = NULL;
        w->arena_bytes = 0;
        w->placed = 0;
        void *memory = NULL;
        size_t bytes = plan->arena ? plan->arena : ALIGNMENT;
        size_t alignment = bytes >= HUGE_FROM ? HUGE_PAGE : ALIGNMENT;
        if (posix_memalign(&memory, alignment, bytes)) {
            PyErr_Format(PyExc_MemoryError, "no memory for %zu bytes of temporaries", bytes);
            return -1;
        }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
        if (bytes >= HUGE_FROM) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        w->arena = memory;
        w->arena_bytes = bytes;
    }
    if (w->placed != plan->serial) {
        for (Py_ssize_t k = 0; k < p->slots; k++) w->slot[k] = w->arena + plan->offsets[k];
        w->placed = plan->serial;
    }
    return 0;
}

/* Points input k of the workspace at the array's elements, or at a copy's that lie one after the other. */
static int workspace_input(workspace *w, Py_ssize_t k, PyArrayObject *array) {
    if (!PyArray_CHKFLAGS(array, NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) {
        PyObject *copy = PyArray_NewCopy(array, NPY_CORDER);
        if (!copy) return -1;
        w->copies[k] = copy;
        array = (PyArrayObject *)copy;
    }
    w->in[k] = PyArray_DATA(array);
    return 0;
}

/* Calls the program on the inputs of the workspace; its outputs are then in `results`. */
static int execute(Program *p, const Plan *plan, workspace *w) {
    if (workspace_place(p, w, plan)) return -1;
    const int64_t *extents = plan->extents;
    for (Py_ssize_t k = 0; k < p->outputs; k++) {
        npy_intp shape[NPY_MAXDIMS];
        int rank = p->ranks[k];
        for (int axis = 0; axis < rank; axis++) shape[axis] = (npy_intp)extents[axis];
        extents += rank;
        Py_INCREF(p->dtypes[k]); /* the next call steals it */
        w->results[k] = PyArray_NewFromDescr(&PyArray_Type, p->dtypes[k], rank, shape, NULL, NULL, 0, NULL);
        if (!w->results[k]) return -1;
        w->out[k] = PyArray_DATA((PyArrayObject *)w->results[k]);
    }
    if (plan->releases) {
        Py_BEGIN_ALLOW_THREADS
        p->main(w->ctx, p->kernels, w->in, w->out, p->konst, p->packed, w->slot, plan->symbols);
        Py_END_ALLOW_THREADS
    } else {
        p->main(w->ctx, p->kernels, w->in, w->out, p->konst, p->packed, w->slot, plan->symbols);
    }
    int64_t details[3] = {0, 0, 0};
    int code = p->ctx_error(w->ctx, details);
    if (code == 0) return 0;
    p->ctx_reset(w->ctx);
    PyObject *none = PyObject_CallFunction(p->on_error, "iLLL", code, (long long)details[0], (long long)details[1],
                                           (long long)details[2]);
    if (none) {
        Py_DECREF(none);
        PyErr_Format(PyExc_SystemError, "error %d of a native call was not raised", code);
    }
    return -1;
}

static PyObject *take_result(workspace *w, Py_ssize_t k) {
    PyObject *result = w->results[k];
    w->results[k] = NULL;
    return result;
}

static PyObject *result_list(Program *p, workspace *w) {
    PyObject *list = PyList_New(p->outputs);
    if (!list) return NULL;
    for (Py_ssize_t k = 0; k < p->outputs; k++) PyList_SET_ITEM(list, k, take_result(w, k));
    return list;
}

static int pointer_from(PyObject *number, void *target) {
    void *pointer = PyLong_AsVoidPtr(number);
    if (!pointer && PyErr_Occurred()) return -1;
    memcpy(target, &pointer, sizeof pointer);
    return 0;
}

PyDoc_STRVAR(program_doc, "Program(main, kernels, konst, packed, runtime, counts, outputs, on_error, keep)\n--\n\n"
                          "A compiled program. `runtime` is (pool, create, destroy, error, reset), `counts` the numbers\n"
                          "of inputs, temporaries and symbols, `outputs` a (dtype, rank) each; addresses are ints, and\n"
                          "`keep` owns what they point to.");

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *main, *kernels, *konst, *packed, *pool, *create, *destroy, *error, *reset, *outputs, *on_error, *keep;
    Py_ssize_t inputs, slots, symbols;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Program takes no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "OOOO(OOOOO)(nnn)O!OO:Program", &main, &kernels, &konst, &packed, &pool, &create,
                          &destroy, &error, &reset, &inputs, &slots, &symbols, &PyTuple_Type, &outputs, &on_error,
                          &keep)) {
        return NULL;
    }
    Program *p = (Program *)type->tp_alloc(type, 0);
    if (!p) return NULL;
    p->serial = ++serials;
    p->inputs = inputs;
    p->slots = slots;
    p->symbols = symbols;
    p->on_error = Py_NewRef(on_error);
    p->keep = Py_NewRef(keep);
    if (pointer_from(main, &p->main) || pointer_from(kernels, &p->kernels) || pointer_from(konst, &p->konst) ||
        pointer_from(packed, &p->packed) || pointer_from(pool, &p->pool) || pointer_from(create, &p->ctx_create) ||
        pointer_from(destroy, &p->ctx_destroy) || pointer_from(error, &p->ctx_error) ||
        pointer_from(reset, &p->ctx_reset)) {
        goto fail;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(outputs);
    p->dtypes = PyMem_Calloc((size_t)n + 1, sizeof *p->dtypes);
    p->ranks = PyMem_Calloc((size_t)n + 1, sizeof *p->ranks);
    if (!p->dtypes || !p->ranks) {
        PyErr_NoMemory();
        goto fail;
    }
    for (Py_ssize_t k = 0; k < n; k++) {
        PyObject *dtype;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(outputs, k), "O!i:output", &PyArrayDescr_Type, &dtype, &p->ranks[k])) {
            goto fail;
        }
        if (p->ranks[k] < 0 || p->ranks[k] > NPY_MAXDIMS) {
            PyErr_Format(PyExc_ValueError, "NumPy arrays have at most %d axes, output %zd has %d", NPY_MAXDIMS, k,
                         p->ranks[k]);
            goto fail;
        }
        p->dtypes[k] = (PyArray_Descr *)Py_NewRef(dtype);
        p->outputs = k + 1;
    }
    return (PyObject *)p;
fail:
    Py_DECREF(p);
    return NULL;
}

static int program_traverse(PyObject *self, visitproc visit, void *arg) {
    Program *p = (Program *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(p->on_error);
    Py_VISIT(p->keep);
    return 0;
}

static void program_dealloc(PyObject *self) {
    Program *p = (Program *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (workspace *w = p->spare; w;) {
        workspace *next = w->next;
        workspace_free(p, w);
        w = next;
    }
    for (Py_ssize_t k = 0; k < p->outputs; k++) Py_DECREF(p->dtypes[k]);
    PyMem_Free(p->dtypes);
    PyMem_Free(p->ranks);
    Py_XDECREF(p->on_error);
    Py_XDECREF(p->keep);
    type->tp_free(self);
    Py_DECREF(type);
}

static int numbers_from(PyObject *sequence, Py_ssize_t expected, const char *what, int64_t *target) {
    PyObject *fast = PySequence_Fast(sequence, what);
    if (!fast) return -1;
    Py_ssize_t n = PySequence_Fast_GET_SIZE(fast);
    int failed = n != expected;
    if (failed) PyErr_Format(PyExc_ValueError, "%s: expected %zd numbers, got %zd", what, expected, n);
    for (Py_ssize_t k = 0; k < n && !failed; k++) {
        target[k] = PyLong_AsLongLong(PySequence_Fast_GET_ITEM(fast, k));
        failed = target[k] == -1 && PyErr_Occurred();
    }
    Py_DECREF(fast);
    return failed ? -1 : 0;
}

PyDoc_STRVAR(program_plan_doc, "plan($self, symbols, offsets, arena, extents, releases, /)\n--\n\n"
                               "The Plan for symbol values: temporaries' offsets in an arena of so many bytes, the\n"
                               "outputs' extents one shape after the other, and whether to let go of the GIL.");

static PyObject *program_plan(PyObject *self, PyObject *args) {
    Program *p = (Program *)self;
    PyObject *symbols, *offsets, *extents;
    Py_ssize_t arena;
    int releases;
    if (!PyArg_ParseTuple(args, "OOnOp:plan", &symbols, &offsets, &arena, &extents, &releases)) return NULL;
    Py_ssize_t total = 0;
    for (Py_ssize_t k = 0; k < p->outputs; k++) total += p->ranks[k];
    Plan *plan = (Plan *)plan_type->tp_alloc(plan_type, 0);
    if (!plan) return NULL;
    plan->serial = ++serials;
    plan->program = p->serial;
    plan->arena = (size_t)arena;
    plan->releases = releases;
    plan->numbers = PyMem_Calloc((size_t)(p->symbols + p->slots + total) + 1, sizeof(int64_t));
    if (!plan->numbers) {
        Py_DECREF(plan);
        return PyErr_NoMemory();
    }
    plan->symbols = plan->numbers;
    plan->offsets = plan->symbols + p->symbols;
    plan->extents = plan->offsets + p->slots;
    if (numbers_from(symbols, p->symbols, "symbols", plan->symbols) ||
        numbers_from(offsets, p->slots, "offsets", plan->offsets) ||
        numbers_from(extents, total, "extents", plan->extents)) {
        Py_DECREF(plan);
        return NULL;
    }
    return (PyObject *)plan;
}

static int check_plan(const Program *p, PyObject *plan) {
    if (Py_TYPE(plan) == plan_type && ((Plan *)plan)->program == p->serial) return 0;
    PyErr_SetString(PyExc_ValueError, "expected a Plan that this Program made");
    return -1;
}

PyDoc_STRVAR(program_run_doc, "run($self, inputs, plan, /)\n--\n\n"
                              "Call the program on a sequence of arrays of the dtypes and shapes that the plan was made\n"
                              "for; a list of outputs. Raises what `on_error` raises, and MemoryError.");

static PyObject *program_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Program *p = (Program *)self;
    if (count != 2) {
        PyErr_Format(PyExc_TypeError, "run takes inputs and a plan, got %zd arguments", count);
        return NULL;
    }
    if (check_plan(p, args[1])) return NULL;
    /* A tuple of its own keeps the arrays alive, whatever happens to the caller's list. */
    PyObject *inputs = PySequence_Tuple(args[0]), *results = NULL;
    if (!inputs) return NULL;
    workspace *w = NULL;
    if (PyTuple_GET_SIZE(inputs) != p->inputs) {
        PyErr_Format(PyExc_ValueError, "expected %zd inputs, got %zd", p->inputs, PyTuple_GET_SIZE(inputs));
        goto done;
    }
    w = workspace_take(p);
    if (!w) goto done;
    for (Py_ssize_t k = 0; k < p->inputs; k++) {
        PyObject *array = PyTuple_GET_ITEM(inputs, k);
        if (!PyArray_Check(array)) {
            PyErr_Format(PyExc_TypeError, "input %zd is no NumPy array but %.200s", k, Py_TYPE(array)->tp_name);
            goto done;
        }
        if (workspace_input(w, k, (PyArrayObject *)array)) goto done;
    }
    if (execute(p, (Plan *)args[1], w) == 0) results = result_list(p, w);
done:
    if (w) workspace_give(p, w);
    Py_DECREF(inputs);
    return results;
}

static PyObject *program_workspaces(PyObject *self, void *unused) {
    (void)unused;
    Py_ssize_t n = 0;
    for (workspace *w = ((Program *)self)->spare; w; w = w->next) n++;
    return PyLong_FromSsize_t(n);
}

static PyMethodDef program_methods[] = {
    {"plan", program_plan, METH_VARARGS, program_plan_doc},
    {"run", (PyCFunction)(void (*)(void))program_run, METH_FASTCALL, program_run_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef program_getset[] = {
    {"workspaces", program_workspaces, NULL, "Number of spare workspaces: as many as calls ever ran at once.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot program_slots[] = {
    {Py_tp_new, program_new},
    {Py_tp_dealloc, program_dealloc},
    {Py_tp_traverse, program_traverse}, /* and no clear: whoever still calls it must find its memory */
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_getset},
    {Py_tp_doc, (void *)program_doc},
    {0, NULL},
};

static PyType_Spec program_spec = {
    .name = "cuvil_dispatch.Program",
    .basicsize = sizeof(Program),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = program_slots,
};

/* ---------------------------------------------------------------- reading arguments */

typedef union {
    int64_t integer;
    double real;
    npy_bool truth;
} scalar;

/* What was read of a call's arguments. Objects are borrowed until frame_hold. */
typedef struct frame {
    struct frame *next;
    int64_t *words; /* structure, dtypes and shapes, in prefix order */
    Py_ssize_t n_words, max_words;
    PyObject **leaves; /* arrays; NULL for a number, whose value is in `scalars` */
    scalar *scalars;
    Py_ssize_t n_leaves, max_leaves;
    PyObject **keys; /* of dicts: their hashes are among the words */
    Py_ssize_t n_keys, max_keys;
} frame;

enum { NONE = 1, TUPLE, LIST, DICT, ARRAY, BOOL, INT, FLOAT };

static inline int64_t word(int tag, int64_t n) { return ((int64_t)tag << 56) | n; }

static void frame_free(frame *f) {
    PyMem_Free(f->words);
    PyMem_Free(f->leaves);
    PyMem_Free(f->scalars);
    PyMem_Free(f->keys);
    PyMem_Free(f);
}

/* Room for `more` entries of `size` bytes in an array that grows. */
static int grow(void **array, Py_ssize_t used, Py_ssize_t *capacity, Py_ssize_t more, size_t size) {
    if (used + more <= *capacity) return 0;
    Py_ssize_t wanted = (used + more) * 2 < 64 ? 64 : (used + more) * 2;
    void *memory = PyMem_Realloc(*array, (size_t)wanted * size);
    if (!memory) return -1;
    *array = memory;
    *capacity = wanted;
    return 0;
}

static int need_words(frame *f, Py_ssize_t more) {
    return grow((void **)&f->words, f->n_words, &f->max_words, more, sizeof *f->words);
}

static int need_leaf(frame *f) {
    Py_ssize_t capacity = f->max_leaves;
    if (grow((void **)&f->scalars, f->n_leaves, &capacity, 1, sizeof *f->scalars)) return -1;
    return grow((void **)&f->leaves, f->n_leaves, &f->max_leaves, 1, sizeof *f->leaves);
}

/* Reads one argument or container: 1, or 0 where it needs the general way, or -1 without memory (no exception set).
 * Runs no Python code. */
static int read_tree(frame *f, PyObject *x, int depth) {
    PyTypeObject *type = Py_TYPE(x);
    if (type == &PyArray_Type) {
        PyArrayObject *array = (PyArrayObject *)x;
        int rank = PyArray_NDIM(array), number = PyArray_DESCR(array)->type_num;
        if (number < 0 || PyArray_ISBYTESWAPPED(array)) return 0;
        if (need_words(f, rank + 1) || need_leaf(f)) return -1;
        f->words[f->n_words++] = word(ARRAY, ((int64_t)rank << 32) | number);
        for (int axis = 0; axis < rank; axis++) f->words[f->n_words++] = PyArray_DIM(array, axis);
        f->leaves[f->n_leaves++] = x;
        return 1;
    }
    if (need_words(f, 1)) return -1;
    if (type == &PyTuple_Type || type == &PyList_Type) {
        if (depth == MAX_DEPTH) return 0;
        int is_tuple = type == &PyTuple_Type;
        Py_ssize_t n = is_tuple ? PyTuple_GET_SIZE(x) : PyList_GET_SIZE(x);
        f->words[f->n_words++] = word(is_tuple ? TUPLE : LIST, n);
        for (Py_ssize_t k = 0; k < n; k++) {
            int status = read_tree(f, is_tuple ? PyTuple_GET_ITEM(x, k) : PyList_GET_ITEM(x, k), depth + 1);
            if (status != 1) return status;
        }
        return 1;
    }
    if (type == &PyDict_Type) {
        if (depth == MAX_DEPTH) return 0;
        f->words[f->n_words++] = word(DICT, PyDict_GET_SIZE(x));
        PyObject *key, *value;
        for (Py_ssize_t at = 0; PyDict_Next(x, &at, &key, &value);) {
            if (Py_TYPE(key) != &PyUnicode_Type) return 0;
            if (need_words(f, 1) || grow((void **)&f->keys, f->n_keys, &f->max_keys, 1, sizeof *f->keys)) return -1;
            f->words[f->n_words++] = PyObject_Hash(key); /* remembered in the str */
            f->keys[f->n_keys++] = key;
            int status = read_tree(f, value, depth + 1);
            if (status != 1) return status;
        }
        return 1;
    }
    if (x == Py_None) {
        f->words[f->n_words++] = word(NONE, 0);
        return 1;
    }
    int tag = type == &PyFloat_Type ? FLOAT : type == &PyLong_Type ? INT : type == &PyBool_Type ? BOOL : 0;
    if (!tag) return 0;
    if (need_leaf(f)) return -1;
    scalar *value = &f->scalars[f->n_leaves];
    int overflow = 0;
    value->integer = 0;
    if (tag == FLOAT) value->real = PyFloat_AS_DOUBLE(x);
    if (tag == INT) value->integer = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (tag == BOOL) value->truth = x == Py_True;
    if (overflow) return 0; /* the general way says what is wrong */
    f->words[f->n_words++] = word(tag, 0);
    f->leaves[f->n_leaves++] = NULL;
    return 1;
}

static int read_call(frame *f, PyObject *args, PyObject *kwargs) {
    f->n_words = f->n_leaves = f->n_keys = 0;
    int status = read_tree(f, args, 0);
    return status == 1 && PyDict_GET_SIZE(kwargs) ? read_tree(f, kwargs, 0) : status;
}

static uint64_t hash_words(const int64_t *words, Py_ssize_t n) {
    uint64_t h = (uint64_t)n;
    for (Py_ssize_t k = 0; k < n; k++) {
        h = (h ^ (uint64_t)words[k]) * UINT64_C(0x9E3779B97F4A7C15); /* 2^64 / golden ratio: Knuth, TAOCP 6.4 */
        h ^= h >> 32;
    }
    return h;
}

/* ---------------------------------------------------------------- Calls */

typedef struct entry {
    struct entry *chain, *newer, *older;
    uint64_t hash;
    int64_t *words;
    Py_ssize_t n_words;
    PyObject **keys;
    Py_ssize_t n_keys;
    Program *program;
    Plan *plan;
    PyObject *result; /* see Calls.add */
    PyObject *owner;  /* its attribute `hits` counts the calls */
} entry;

typedef struct {
    PyObject_HEAD
    entry **buckets; /* a power of two of them */
    Py_ssize_t n_buckets, count, capacity;
    entry *newest, *oldest; /* by last use */
    frame *spare;
} Calls;

static PyObject *hits_name, *one;

static frame *frame_take(Calls *c) {
    frame *f = c->spare;
    if (f) {
        c->spare = f->next;
        return f;
    }
    f = PyMem_Calloc(1, sizeof *f);
    if (!f) PyErr_NoMemory();
    return f;
}

static void frame_give(Calls *c, frame *f) {
    f->next = c->spare;
    c->spare = f;
}

static void entry_free(entry *e) {
    for (Py_ssize_t k = 0; k < e->n_keys; k++) Py_DECREF(e->keys[k]);
    Py_XDECREF((PyObject *)e->program);
    Py_XDECREF((PyObject *)e->plan);
    Py_XDECREF(e->result);
    Py_XDECREF(e->owner);
    PyMem_Free(e->words);
    PyMem_Free(e->keys);
    PyMem_Free(e);
}

static void unlink_use(Calls *c, entry *e) {
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
}

static void link_newest(Calls *c, entry *e) {
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest ? &c->newest->newer : &c->oldest) = e;
    c->newest = e;
}

/* Takes the entry out of the table; the caller frees it when the table is whole again. */
static void detach(Calls *c, entry *e) {
    entry **link = &c->buckets[e->hash & (uint64_t)(c->n_buckets - 1)];
    while (*link != e) link = &(*link)->chain;
    *link = e->chain;
    unlink_use(c, e);
    c->count--;
}

static int same_call(const entry *e, const frame *f, uint64_t hash) {
    if (e->hash != hash || e->n_words != f->n_words || e->n_keys != f->n_keys) return 0;
    if (memcmp(e->words, f->words, (size_t)f->n_words * sizeof *f->words)) return 0;
    for (Py_ssize_t k = 0; k < f->n_keys; k++) {
        if (e->keys[k] != f->keys[k] && PyUnicode_Compare(e->keys[k], f->keys[k])) return 0;
    }
    return 1;
}

static entry *find(Calls *c, const frame *f, uint64_t hash) {
    if (!c->buckets) return NULL;
    entry *e = c->buckets[hash & (uint64_t)(c->n_buckets - 1)];
    while (e && !same_call(e, f, hash)) e = e->chain;
    return e;
}

static int insert(Calls *c, entry *e) {
    if (c->count >= c->n_buckets) {
        Py_ssize_t n = c->n_buckets ? c->n_buckets * 2 : 4;
        entry **buckets = PyMem_Calloc((size_t)n, sizeof *buckets);
        if (!buckets) return -1;
        for (entry *old = c->newest; old; old = old->older) {
            entry **bucket = &buckets[old->hash & (uint64_t)(n - 1)];
            old->chain = *bucket;
            *bucket = old;
        }
        PyMem_Free(c->buckets);
        c->buckets = buckets;
        c->n_buckets = n;
    }
    entry **bucket = &c->buckets[e->hash & (uint64_t)(c->n_buckets - 1)];
    e->chain = *bucket;
    *bucket = e;
    link_newest(c, e);
    c->count++;
    return 0;
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    Py_ssize_t capacity;
    if (kwargs && PyDict_GET_SIZE(kwargs)) {
        PyErr_SetString(PyExc_TypeError, "Calls takes no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "n:Calls", &capacity)) return NULL;
    if (capacity < 1) {
        PyErr_Format(PyExc_ValueError, "capacity must be at least 1, got %zd", capacity);
        return NULL;
    }
    Calls *c = (Calls *)type->tp_alloc(type, 0);
    if (c) c->capacity = capacity;
    return (PyObject *)c;
}

static int calls_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    for (entry *e = ((Calls *)self)->newest; e; e = e->older) {
        Py_VISIT((PyObject *)e->program);
        Py_VISIT(e->result);
        Py_VISIT(e->owner);
    }
    return 0;
}

static int calls_clear(PyObject *self) {
    Calls *c = (Calls *)self;
    while (c->newest) {
        entry *e = c->newest;
        detach(c, e);
        entry_free(e);
    }
    return 0;
}

static void calls_dealloc(PyObject *self) {
    Calls *c = (Calls *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    calls_clear(self);
    PyMem_Free(c->buckets);
    for (frame *f = c->spare; f;) {
        frame *next = f->next;
        frame_free(f);
        f = next;
    }
    type->tp_free(self);
    Py_DECREF(type);
}

static int check_call(PyObject *const *args, Py_ssize_t count, Py_ssize_t expected, const char *name) {
    if (count == expected && PyTuple_CheckExact(args[0]) && PyDict_CheckExact(args[1])) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, the first of which are a tuple and a dict", name, expected);
    return -1;
}

PyDoc_STRVAR(calls_add_doc, "add($self, args, kwargs, inputs, program, plan, result, owner, /)\n--\n\n"
                            "Remember what answers calls with arguments like these; the least recently used is forgotten.\n"
                            "`inputs` are the leaves of the arguments as the general way finds them. `result` says how\n"
                            "outputs become the call's result: None (the one output itself), the type tuple or list, a\n"
                            "tuple of str (the keys of a dict), or a callable that takes a list.\n"
                            "False where Calls.run would read such arguments otherwise or not at all.");

static PyObject *calls_add(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Calls *c = (Calls *)self;
    if (check_call(args, count, 7, "add")) return NULL;
    if (!PyList_CheckExact(args[2]) || Py_TYPE(args[3]) != program_type) {
        PyErr_Format(PyExc_TypeError, "expected a list and a Program, got %.200s and %.200s", Py_TYPE(args[2])->tp_name,
                     Py_TYPE(args[3])->tp_name);
        return NULL;
    }
    Program *p = (Program *)args[3];
    if (check_plan(p, args[4])) return NULL;
    PyObject *result = args[5];
    if (result == Py_None ? p->outputs != 1 : PyTuple_CheckExact(result) && PyTuple_GET_SIZE(result) != p->outputs) {
        PyErr_Format(PyExc_ValueError, "the program has %zd outputs, which `result` does not fit", p->outputs);
        return NULL;
    }
    frame *f = frame_take(c);
    if (!f) return NULL;
    entry *e = NULL;
    int status = read_call(f, args[0], args[1]);
    if (status < 0) goto no_memory;
    uint64_t hash = hash_words(f->words, f->n_words);
    int fits = status == 1 && f->n_leaves == p->inputs && f->n_leaves == PyList_GET_SIZE(args[2]);
    for (Py_ssize_t k = 0; fits && k < f->n_leaves; k++) {
        fits = !f->leaves[k] || f->leaves[k] == PyList_GET_ITEM(args[2], k);
    }
    if (!fits || find(c, f, hash)) {
        frame_give(c, f);
        return PyBool_FromLong(fits);
    }
    e = PyMem_Calloc(1, sizeof *e);
    if (!e) goto no_memory;
    e->words = PyMem_Malloc(((size_t)f->n_words + 1) * sizeof *e->words);
    e->keys = PyMem_Malloc(((size_t)f->n_keys + 1) * sizeof *e->keys);
    if (!e->words || !e->keys) goto no_memory;
    e->hash = hash;
    e->n_words = f->n_words;
    memcpy(e->words, f->words, (size_t)f->n_words * sizeof *e->words);
    for (; e->n_keys < f->n_keys; e->n_keys++) e->keys[e->n_keys] = Py_NewRef(f->keys[e->n_keys]);
    e->program = (Program *)Py_NewRef(args[3]);
    e->plan = (Plan *)Py_NewRef(args[4]);
    e->result = Py_NewRef(result);
    e->owner = Py_NewRef(args[6]);
    if (insert(c, e)) goto no_memory;
    frame_give(c, f);
    if (c->count > c->capacity) {
        entry *old = c->oldest;
        detach(c, old);
        entry_free(old);
    }
    Py_RETURN_TRUE;
no_memory:
    if (e) entry_free(e);
    frame_give(c, f);
    return PyErr_NoMemory();
}

static PyObject *build_result(Program *p, workspace *w, PyObject *result) {
    if (result == Py_None) return take_result(w, 0);
    if (result == (PyObject *)&PyTuple_Type) {
        PyObject *tuple = PyTuple_New(p->outputs);
        if (!tuple) return NULL;
        for (Py_ssize_t k = 0; k < p->outputs; k++) PyTuple_SET_ITEM(tuple, k, take_result(w, k));
        return tuple;
    }
    if (PyTuple_CheckExact(result)) {
        PyObject *dict = PyDict_New();
        for (Py_ssize_t k = 0; dict && k < p->outputs; k++) {
            if (PyDict_SetItem(dict, PyTuple_GET_ITEM(result, k), w->results[k])) Py_CLEAR(dict);
        }
        return dict;
    }
    PyObject *list = result_list(p, w);
    if (!list || result == (PyObject *)&PyList_Type) return list;
    PyObject *built = PyObject_CallOneArg(result, list);
    Py_DECREF(list);
    return built;
}

static int count_hit(PyObject *owner) {
    PyObject *hits = PyObject_GetAttr(owner, hits_name);
    if (!hits) return -1;
    PyObject *sum = PyNumber_Add(hits, one);
    Py_DECREF(hits);
    if (!sum) return -1;
    int status = PyObject_SetAttr(owner, hits_name, sum);
    Py_DECREF(sum);
    return status;
}

PyDoc_STRVAR(calls_run_doc, "run($self, args, kwargs, /)\n--\n\n"
                            "The result of a call with these arguments, or NotImplemented where none like it was added.\n"
                            "Raises what Program.run raises.");

static PyObject *calls_run(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    Calls *c = (Calls *)self;
    if (check_call(args, count, 2, "run")) return NULL;
    frame *f = frame_take(c);
    if (!f) return NULL;
    int status = read_call(f, args[0], args[1]);
    entry *e = status == 1 ? find(c, f, hash_words(f->words, f->n_words)) : NULL;
    if (!e) {
        frame_give(c, f);
        if (status < 0) return PyErr_NoMemory();
        return Py_NewRef(Py_NotImplemented);
    }
    if (e != c->newest) {
        unlink_use(c, e);
        link_newest(c, e);
    }
    /* From here on Python code may run: the entry may be forgotten, containers may change. */
    Program *p = (Program *)Py_NewRef((PyObject *)e->program);
    Plan *plan = (Plan *)Py_NewRef((PyObject *)e->plan);
    PyObject *form = Py_NewRef(e->result), *owner = Py_NewRef(e->owner), *result = NULL;
    Py_ssize_t n = f->n_leaves;
    for (Py_ssize_t k = 0; k < n; k++) Py_XINCREF(f->leaves[k]);
    workspace *w = NULL;
    if (count_hit(owner)) goto done;
    w = workspace_take(p);
    if (!w) goto done;
    for (Py_ssize_t k = 0; k < n; k++) {
        if (!f->leaves[k]) {
            w->in[k] = &f->scalars[k];
        } else if (workspace_input(w, k, (PyArrayObject *)f->leaves[k])) {
            goto done;
        }
    }
    if (execute(p, plan, w) == 0) result = build_result(p, w, form);
done:
    if (w) workspace_give(p, w);
    for (Py_ssize_t k = 0; k < n; k++) Py_XDECREF(f->leaves[k]);
    frame_give(c, f);
    Py_DECREF((PyObject *)p);
    Py_DECREF((PyObject *)plan);
    Py_DECREF(form);
    Py_DECREF(owner);
    return result;
}

static Py_ssize_t calls_length(PyObject *self) { return ((Calls *)self)->count; }

static PyMethodDef calls_methods[] = {
    {"add", (PyCFunction)(void (*)(void))calls_add, METH_FASTCALL, calls_add_doc},
    {"run", (PyCFunction)(void (*)(void))calls_run, METH_FASTCALL, calls_run_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_new, calls_new},
    {Py_tp_dealloc, calls_dealloc},
    {Py_tp_traverse, calls_traverse},
    {Py_tp_clear, calls_clear},
    {Py_tp_methods, calls_methods},
    {Py_mp_length, calls_length},
    {Py_tp_doc, "Calls(capacity)\n--\n\nThe calls that a jitted function has met."},
    {0, NULL},
};

static PyType_Spec calls_spec = {
    .name = "cuvil_dispatch.Calls",
    .basicsize = sizeof(Calls),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = calls_slots,
};

/* ---------------------------------------------------------------- module */

static int module_exec(PyObject *module) {
    import_array1(-1);
    hits_name = PyUnicode_InternFromString("hits");
    one = PyLong_FromLong(1);
    plan_type = (PyTypeObject *)PyType_FromSpec(&plan_spec);
    program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    calls_type = (PyTypeObject *)PyType_FromSpec(&calls_spec);
    if (!hits_name || !one || !plan_type || !program_type || !calls_type) return -1;
    if (PyModule_AddType(module, plan_type) || PyModule_AddType(module, program_type)) return -1;
    return PyModule_AddType(module, calls_type);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    /* The types are kept in C globals. */
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "cuvil_dispatch",
    .m_doc = "The short way from a Python call to compiled code.",
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit_cuvil_dispatch(void) { return PyModuleDef_Init(&module_def); }
