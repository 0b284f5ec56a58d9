/* PDGEMM of ScaLAPACK, timed: pdgemm M N K BLOCK ROWS COLUMNS CALLS, on ROWS * COLUMNS ranks.
 *
 * Rank 0 prints one line of JSON: the time of each call in milliseconds, the bytes that all ranks sent in
 * one call, counted at the calls of MPI, and whether the result is right.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

void Cblacs_pinfo(int *rank, int *size);
void Cblacs_get(int context, int what, int *value);
void Cblacs_gridinit(int *context, const char *order, int rows, int columns);
void Cblacs_gridinfo(int context, int *rows, int *columns, int *row, int *column);
void Cblacs_exit(int more);
int numroc_(int *n, int *block, int *at, int *first, int *parts);
void descinit_(int *desc, int *m, int *n, int *mb, int *nb, int *row, int *column, int *context,
               int *leading, int *info);
void pdgemm_(const char *ta, const char *tb, int *m, int *n, int *k, double *alpha, double *a, int *ia,
             int *ja, int *desca, double *b, int *ib, int *jb, int *descb, double *beta, double *c,
             int *ic, int *jc, int *descc);

static long long sent = 0;

static void count(int elements, MPI_Datatype type) {
    int size;
    PMPI_Type_size(type, &size);
    sent += (long long)elements * size;
}

int MPI_Send(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    count(n, type);
    return PMPI_Send(data, n, type, to, tag, comm);
}

int MPI_Rsend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm) {
    count(n, type);
    return PMPI_Rsend(data, n, type, to, tag, comm);
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm,
              MPI_Request *request) {
    count(n, type);
    return PMPI_Isend(data, n, type, to, tag, comm, request);
}

int MPI_Sendrecv(const void *out, int n, MPI_Datatype type, int to, int tag, void *in, int m,
                 MPI_Datatype other, int from, int tag2, MPI_Comm comm, MPI_Status *status) {
    count(n, type);
    return PMPI_Sendrecv(out, n, type, to, tag, in, m, other, from, tag2, comm, status);
}

int MPI_Bcast(void *data, int n, MPI_Datatype type, int root, MPI_Comm comm) {
    int rank;
    PMPI_Comm_rank(comm, &rank);
    if (rank != root) count(n, type); /* received, by each but the root */
    return PMPI_Bcast(data, n, type, root, comm);
}

/* Elements that are whole numbers and differ from place to place: sums of products are exact. */
static double of_a(int i, int j) { return (double)((7 * i + 13 * j + i * j % 5) % 17 - 8); }
static double of_b(int i, int j) { return (double)((11 * i + 3 * j + i * j % 7) % 19 - 9); }

static int global(int local, int block, int at, int parts) {
    return (local / block * parts + at) * block + local % block;
}

static double *matrix(int m, int n, int block, int rows, int columns, int row, int column, int context,
                      int *desc, double (*of)(int, int)) {
    int zero = 0, info, height = numroc_(&m, &block, &row, &zero, &rows);
    int width = numroc_(&n, &block, &column, &zero, &columns), leading = height > 1 ? height : 1;
    double *data = malloc(sizeof(double) * (size_t)leading * (width > 1 ? width : 1));
    descinit_(desc, &m, &n, &block, &block, &zero, &zero, &context, &leading, &info);
    for (int j = 0; j < width; j++)
        for (int i = 0; i < height; i++)
            data[i + (size_t)j * leading] =
                of ? of(global(i, block, row, rows), global(j, block, column, columns)) : 0.0;
    return data;
}

int main(int argc, char **argv) {
    if (argc != 8) return 2;
    int m = atoi(argv[1]), n = atoi(argv[2]), k = atoi(argv[3]), block = atoi(argv[4]);
    int rows = atoi(argv[5]), columns = atoi(argv[6]), calls = atoi(argv[7]);
    int rank, size, context, row, column, one = 1;
    MPI_Init(&argc, &argv);
    Cblacs_pinfo(&rank, &size);
    Cblacs_get(-1, 0, &context);
    Cblacs_gridinit(&context, "Row", rows, columns);
    Cblacs_gridinfo(context, &rows, &columns, &row, &column);
    int da[9], db[9], dc[9];
    double *a = matrix(m, k, block, rows, columns, row, column, context, da, of_a);
    double *b = matrix(k, n, block, rows, columns, row, column, context, db, of_b);
    double *c = matrix(m, n, block, rows, columns, row, column, context, dc, NULL);
    double alpha = 1.0, beta = 0.0, *times = malloc(sizeof(double) * (calls + 1));
    for (int call = 0; call <= calls; call++) { /* the first is not counted */
        sent = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        pdgemm_("N", "N", &m, &n, &k, &alpha, a, &one, &one, da, b, &one, &one, db, &beta, c, &one, &one, dc);
        MPI_Barrier(MPI_COMM_WORLD);
        times[call] = 1e3 * (MPI_Wtime() - start);
    }
    int right = 1;
    int zero = 0, height = numroc_(&m, &block, &row, &zero, &rows);
    int width = numroc_(&n, &block, &column, &zero, &columns);
    for (int at = 0; at < 64 && height && width; at++) {
        int i = at * 7919 % height, j = at * 104729 % width;
        double sum = 0.0;
        int gi = global(i, block, row, rows), gj = global(j, block, column, columns);
        for (int x = 0; x < k; x++) sum += of_a(gi, x) * of_b(x, gj);
        right &= sum == c[i + (size_t)j * height];
    }
    long long total = 0;
    int all = 0;
    MPI_Reduce(&sent, &total, 1, MPI_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&right, &all, 1, MPI_INT, MPI_MIN, 0, MPI_COMM_WORLD);
    if (!rank) {
        printf("{\"ms\": [");
        for (int call = 1; call <= calls; call++) printf("%s%.4f", call > 1 ? ", " : "", times[call]);
        printf("], \"bytes\": %lld, \"right\": %s}\n", total, all ? "true" : "false");
    }
    Cblacs_exit(1);
    MPI_Finalize();
    return 0;
}
