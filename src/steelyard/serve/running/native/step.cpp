// One step of a decoder on the CPU, and what the runner calls.
#include "attention.h"
#include "products.h"

struct Layer {
    Norm attention_norm, query_norm, key_norm, mlp_norm;  // null gains where there is none
    Linear qkv, out, up, down;
};

struct Model {
    int64_t num_layers, hidden, heads, kv_heads, head_dim, inner, vocab, block_size, num_blocks,
        position_offset;
    int64_t gated, rectified, kv_kind, narrow_table;  // embeddings in bfloat16
    float epsilon, head_epsilon;
    const Layer* layers;
    Norm norm;
    Linear head;
    // positions, or cosines and sines, are null
    const void* embedding;
    const float *positions, *cosines, *sines;
    void* kv;
};

struct Step {
    int64_t rows, decodes, sequences, table_row, picked;
    const int64_t *tokens, *positions, *slots, *starts, *contexts, *tables, *picks;
    float *hidden, *normed, *qkv, *attended, *up, *logits;  // rows padded to whole panels
    int32_t* tiles;  // `tile_words` of the rows and the widest input
};

// Where a layer's keys (0) or values (1) begin.
template <class T>
INLINE T* side(const Model& m, long layer, long which) {
    return (T*)m.kv + (layer * 2 + which) * m.num_blocks * m.kv_heads
        * head_numbers<T>(m.block_size, m.head_dim);
}

INLINE void rotate(float* head, const float* cosines, const float* sines, long half) {
    for (long i = 0; i < half; i++) {
        const float x = head[i], y = head[i + half];
        head[i] = x * cosines[i] - y * sines[i];
        head[i + half] = y * cosines[i] + x * sines[i];
    }
}

// Norms and turns queries and keys of one row, and stores keys and values in the pool.
template <class T>
static void place(const Model& m, const Layer& layer, long index, const Step& s, long row,
    float* qkv) {
    const long width = m.head_dim, half = width / 2, position = s.positions[row];
    for (long head = 0; head < m.heads + m.kv_heads; head++) {
        const Norm& norm = head < m.heads ? layer.query_norm : layer.key_norm;
        if (norm.gain)
            normalize(qkv + head * width, norm, width, m.head_epsilon, qkv + head * width);
        if (m.cosines)
            rotate(qkv + head * width, m.cosines + position * half, m.sines + position * half,
                half);
    }
    const long block = s.slots[row] / m.block_size, offset = s.slots[row] % m.block_size;
    for (long which = 0; which < 2; which++)
        for (long head = 0; head < m.kv_heads; head++) {
            const float* from = qkv + (m.heads + which * m.kv_heads + head) * width;
            T* to = side<T>(m, index, which)
                + (block * m.kv_heads + head) * head_numbers<T>(m.block_size, width);
            put_token(to, m.block_size, width, offset, from);
        }
}

INLINE f8 gelu(f8 x) {
    const f8 inner = 0.7978845608028654f * (x + 0.044715f * x * x * x);
    return x - x / (exponential(2.0f * inner) + 1.0f);
}

// Turns up [rows, (gated ? 2 : 1) * inner] into activations in its first `inner` columns.
static void activate(Team& team, const Model& m, long rows, float* up, long up_row) {
    team.loop(rows, 8, [&](long row) {
        float* x = up + row * up_row;
        for (long i = 0; i < m.inner; i += 8) {
            const f8 v = load(x + i);
            if (m.gated) store(x + i, v / (1.0f + exponential(-v)) * load(x + m.inner + i));
            else store(x + i, m.rectified ? larger(v, f8{}) : gelu(v));
        }
    });
}

static void normalize_rows(Team& team, const float* x, long rows, const Norm& norm, long width,
    float epsilon, float* out) {
    const long stride = padded(width);
    team.loop(rows, 8, [&](long row) {
        normalize(x + row * stride, norm, width, epsilon, out + row * stride);
    });
}

// Keeps only the picked rows (rising, distinct) of hidden and attended, moved to the front.
static void keep(Team& team, const Model& m, const Step& s) {
    const long hidden = padded(m.hidden), attended = padded(m.heads * m.head_dim);
    team.loop(1, 1, [&](long) {
        for (long i = 0; i < s.picked; i++) {
            memmove(s.hidden + i * hidden, s.hidden + s.picks[i] * hidden, sizeof(float) * hidden);
            memmove(s.attended + i * attended, s.attended + s.picks[i] * attended,
                sizeof(float) * attended);
        }
    });
}

template <class T>
static void run_layer(Team& team, const Model& m, long index, const Step& s, const Work& work,
    float* parts) {
    const Layer& layer = m.layers[index];
    const long width = m.head_dim, hidden = padded(m.hidden);
    const long qkv = padded((m.heads + 2 * m.kv_heads) * width);
    const long attended = padded(m.heads * width), up = padded(m.inner * (m.gated ? 2 : 1));
    normalize_rows(team, s.hidden, s.rows, layer.attention_norm, m.hidden, m.epsilon, s.normed);
    product(team, s.normed, hidden, s.rows, layer.qkv, s.qkv, qkv, false, s.tiles);
    team.loop(s.rows, 8, [&](long row) { place<T>(m, layer, index, s, row, s.qkv + row * qkv); });
    long rows = s.rows;
    const bool last = index + 1 == m.num_layers;
    if (last && s.picked == 0) return;  // keys and values are stored, and nobody reads the rest
    const Paged<T> paged = {side<T>(m, index, 0), side<T>(m, index, 1), m.kv_heads,
        m.heads / m.kv_heads, width, m.block_size, s.tables, s.table_row,
        1.0f / std::sqrt((float)width)};
    attend(team, paged, work, {s.starts, s.contexts}, s.qkv, qkv, s.attended, attended, parts);
    // After the last attention rows no longer depend on each other: those without a token are
    // dropped.
    if (last) keep(team, m, s), rows = s.picked;
    product(team, s.attended, attended, rows, layer.out, s.hidden, hidden, true, s.tiles);
    normalize_rows(team, s.hidden, rows, layer.mlp_norm, m.hidden, m.epsilon, s.normed);
    product(team, s.normed, hidden, rows, layer.up, s.up, up, false, s.tiles);
    activate(team, m, rows, s.up, up);
    product(team, s.up, up, rows, layer.down, s.hidden, hidden, true, s.tiles);
}

// Puts a row's token, and its position where positions are learned, into the residual stream.
template <class T>
INLINE void embed(const Model& m, const T* table, const Step& s, long row) {
    const T* token = table + s.tokens[row] * m.hidden;
    float* out = s.hidden + row * padded(m.hidden);
    for (long i = 0; i < m.hidden; i += 8) store(out + i, load(token + i));
    if (!m.positions) return;
    const float* place = m.positions + (s.positions[row] + m.position_offset) * m.hidden;
    for (long i = 0; i < m.hidden; i += 8) store(out + i, load(out + i) + load(place + i));
}

template <class T>
static void run_model(Team& team, const Model& m, const Step& s) {
    const long hidden = padded(m.hidden), group = m.heads / m.kv_heads;
    const Work work(s.sequences, s.decodes, m.kv_heads, group, s.starts, s.contexts);
    static thread_local std::vector<float> memory;
    const long floats = work.num_parts * m.heads * (m.head_dim + 2);
    if ((long)memory.size() < floats) memory.resize(floats);
    float* parts = memory.data();
    team.run([&] {
        team.loop(s.rows, 8, [&](long row) {
            if (m.narrow_table) embed(m, (const bf16*)m.embedding, s, row);
            else embed(m, (const float*)m.embedding, s, row);
        });
        for (long index = 0; index < m.num_layers; index++)
            run_layer<T>(team, m, index, s, work, parts);
        if (s.picked) {
            normalize_rows(team, s.hidden, s.picked, m.norm, m.hidden, m.epsilon, s.normed);
            product(team, s.normed, hidden, s.picked, m.head, s.logits, padded(m.vocab), false,
                s.tiles);
        }
    });
}

template <class T>
static void decode_pool(Team& team, const float* query, const T* keys, const T* values,
    const int64_t* tables, const int64_t* contexts, long rows, long heads, long kv_heads,
    long width, long block_size, long table_row, long window, float softcap, float* out) {
    const Work work(rows, rows, kv_heads, heads / kv_heads, nullptr, contexts, window);
    const Paged<T> paged = {keys, values, kv_heads, heads / kv_heads, width, block_size, tables,
        table_row, 1.0f / std::sqrt((float)width), softcap, window};
    std::vector<float> parts(work.num_parts * heads * (width + 2));
    const long row = heads * width;
    team.run([&] {
        attend(team, paged, work, {nullptr, contexts}, query, row, out, row, parts.data());
    });
}

extern "C" {

void steelyard_decode(void* team, const float* query, const void* keys, const void* values,
    int64_t kind, const int64_t* tables, const int64_t* contexts, int64_t rows, int64_t heads,
    int64_t kv_heads, int64_t width, int64_t block_size, int64_t table_row, int64_t window,
    float softcap, float* out) {
    with_type(kind, keys, [&](auto k) {
        decode_pool(*(Team*)team, query, k, (decltype(k))values, tables, contexts, rows, heads,
            kv_heads, width, block_size, table_row, window, softcap, out);
    });
}

void steelyard_run(void* team, const Model* model, const Step* step) {
    with_type(model->kv_kind, model->kv, [&]<class T>(const T*) {
        run_model<T>(*(Team*)team, *model, *step);
    });
}
}
