// ggml_attention times ggml's flash attention for one new token, the shape that
// kvq's decode kernels are measured on.
//
//   ggml_attention K_TYPE V_TYPE THREADS SECONDS TOKENS KV_HEADS QUERY_HEADS HEAD_DIM WORKING_SET_MIB
//
// The cache is repeated until the working set is reached, so that every pass
// streams from memory. Prints one line of JSON: milliseconds a token (median and
// quartiles), cache bytes and the number of passes.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

static double now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static enum ggml_type type_named(const char *name) {
	for (int t = 0; t < GGML_TYPE_COUNT; t++) {
		const char *known = ggml_type_name((enum ggml_type)t);
		if (known != NULL && strcmp(known, name) == 0) {
			return (enum ggml_type)t;
		}
	}
	fprintf(stderr, "unknown type %s\n", name);
	exit(2);
}

// normal is the sum of twelve uniform numbers less six, from a fixed generator.
static float normal(uint64_t *state) {
	float sum = -6;
	for (int i = 0; i < 12; i++) {
		*state = *state * 6364136223846793005u + 1442695040888963407u;
		sum += (float)(*state >> 40) / (float)(1 << 24);
	}
	return sum;
}

// fill stores random rows of head_dim values in the tensor's type.
static void fill(struct ggml_tensor *t, uint64_t seed) {
	int64_t rows = ggml_nrows(t), d = t->ne[0], batch = 1024;
	float *values = malloc(sizeof(float) * batch * d);
	char *encoded = malloc(ggml_row_size(t->type, d) * batch);
	for (int64_t i = 0; i < batch * d; i++) {
		values[i] = normal(&seed);
	}
	if (t->type == GGML_TYPE_F32) {
		memcpy(encoded, values, sizeof(float) * batch * d);
	} else {
		ggml_quantize_chunk(t->type, values, encoded, 0, batch, d, NULL);
	}
	size_t row = ggml_row_size(t->type, d);
	for (int64_t r = 0; r < rows; r += batch) {
		int64_t n = rows - r < batch ? rows - r : batch;
		ggml_backend_tensor_set(t, encoded, r * row, n * row);
	}
	free(values);
	free(encoded);
}

static int ascending(const void *a, const void *b) {
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

int main(int argc, char **argv) {
	if (argc != 10) {
		fprintf(stderr, "usage: %s K_TYPE V_TYPE THREADS SECONDS TOKENS KV_HEADS QUERY_HEADS HEAD_DIM WORKING_SET_MIB\n", argv[0]);
		return 2;
	}
	enum ggml_type k_type = type_named(argv[1]), v_type = type_named(argv[2]);
	int threads = atoi(argv[3]);
	double seconds = atof(argv[4]);
	int64_t tokens = atoll(argv[5]), kv_heads = atoll(argv[6]), query_heads = atoll(argv[7]), d = atoll(argv[8]);
	size_t working_set = (size_t)atoll(argv[9]) << 20;

	size_t cache = (ggml_row_size(k_type, d) + ggml_row_size(v_type, d)) * tokens * kv_heads;
	int copies = (int)((working_set + cache - 1) / cache);
	copies = copies < 1 ? 1 : copies;

	struct ggml_init_params params = {ggml_tensor_overhead() * (copies * 4 + 8) + ggml_graph_overhead() * copies, NULL, true};
	struct ggml_context *ctx = ggml_init(params);
	ggml_backend_t backend = ggml_backend_cpu_init();
	struct ggml_threadpool_params pool_params = ggml_threadpool_params_default(threads);
	struct ggml_threadpool *pool = ggml_threadpool_new(&pool_params);
	ggml_backend_cpu_set_n_threads(backend, threads);
	ggml_backend_cpu_set_threadpool(backend, pool);

	struct ggml_tensor *q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, d, 1, query_heads);
	struct ggml_tensor **k = calloc(copies, sizeof *k), **v = calloc(copies, sizeof *v);
	struct ggml_cgraph **graphs = calloc(copies, sizeof *graphs);
	float scale = 1 / sqrtf((float)d);
	for (int i = 0; i < copies; i++) {
		k[i] = ggml_new_tensor_3d(ctx, k_type, d, tokens, kv_heads);
		v[i] = ggml_new_tensor_3d(ctx, v_type, d, tokens, kv_heads);
		graphs[i] = ggml_new_graph(ctx);
		ggml_build_forward_expand(graphs[i], ggml_flash_attn_ext(ctx, q, k[i], v[i], NULL, scale, 0, 0));
	}
	if (ggml_backend_alloc_ctx_tensors(ctx, backend) == NULL) {
		fprintf(stderr, "no memory for %d copies of %zu bytes\n", copies, cache);
		return 1;
	}
	fill(q, 1);
	for (int i = 0; i < copies; i++) {
		fill(k[i], 2 + i);
		fill(v[i], 1002 + i);
	}

	for (int i = 0; i < copies; i++) { // warm up
		ggml_backend_graph_compute(backend, graphs[i]);
	}
	int capacity = 1 << 16, count = 0;
	double *times = malloc(sizeof(double) * capacity);
	for (double end = now() + seconds; count < capacity && (count < 5 || now() < end); count++) {
		double start = now();
		if (ggml_backend_graph_compute(backend, graphs[count % copies]) != GGML_STATUS_SUCCESS) {
			fprintf(stderr, "ggml failed\n");
			return 1;
		}
		times[count] = (now() - start) * 1e3;
	}
	qsort(times, count, sizeof *times, ascending);
	printf("{\"ms\":%.4f,\"ms_q1\":%.4f,\"ms_q3\":%.4f,\"cache_bytes\":%zu,\"copies\":%d,\"passes\":%d}\n",
	       times[count / 2], times[count / 4], times[count * 3 / 4], cache, copies, count);
	return 0;
}
