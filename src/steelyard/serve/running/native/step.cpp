// One step of a decoder on the CPU, and what the runner calls.
#include "attention.h"
#include "peaks.h"
#include "shares.h"
#include "timing.h"

INLINE void rotate(float* head, const float* cosines, const float* sines, long half) {
    for (long i = 0; i < half; i++) {
        const float x = head[i], y = head[i + half];
        head[i] = x * cosines[i] - y * sines[i];
        head[i + half] = y * cosines[i] + x * sines[i];
    }
}

// Norms `count` heads one by one, or together.
INLINE void norm_heads(const Model& m, const Norm& norm, float* heads, long count) {
    const long width = m.across_heads ? count * m.head_dim : m.head_dim;
    if (norm.gain)
        for (float* x = heads; x < heads + count * m.head_dim; x += width)
            normalize(x, norm, width, m.epsilon, x);
}

// Norms and turns queries and keys of one row, and stores keys and values in the pool.
static void place(const Model& m, const Layer& layer, long index, const Step& s, long row,
    float* qkv) {
    const long width = m.head_dim, half = m.turned / 2, position = s.positions[row];
    norm_heads(m, layer.query_norm, qkv, m.heads);
    norm_heads(m, layer.key_norm, qkv + m.heads * width, m.kv_heads);
    if (layer.cosines)
        for (long head = 0; head < m.heads + m.kv_heads; head++)
            rotate(qkv + head * width, layer.cosines + position * half,
                layer.sines + position * half, half);
    const long block = s.slots[row] / m.block_size, offset = s.slots[row] % m.block_size;
    for (long which = 0; which < 2; which++)
        for (long head = 0; head < m.kv_heads; head++) {
            const float* from = qkv + (m.heads + which * m.kv_heads + head) * width;
            uint8_t* to = side(m, index, which)
                + (block * m.kv_heads + head) * head_bytes(m.kv_kind, m.block_size, width);
            put_token(m.kv_kind, to, m.block_size, width, offset, from);
        }
}

// Rows of the residual stream, normed where the model has a norm there, for a product.
static const int32_t* fill_normed(Team& team, const Model& m, const Step& s, long rows,
    const Norm& norm, const Linear& map) {
    return fill_tiles(team, rows, map, s.tiles, [&](long row, float* made) -> const float* {
        const float* x = s.hidden + row * row_of(m.hidden);
        if (!norm.gain) return x;
        normalize(x, norm, m.hidden, m.epsilon, made);
        return made;
    });
}

// Keeps only the picked rows (rising, distinct) of hidden and attended, moved to the front.
static void keep(Team& team, const Model& m, const Step& s) {
    const long hidden = row_of(m.hidden), attended = row_of(m.heads * m.head_dim);
    team.loop(1, 1, [&](long) {
        for (long i = 0; i < s.picked; i++) {
            memmove(s.hidden + i * hidden, s.hidden + s.picks[i] * hidden, sizeof(float) * hidden);
            memmove(s.attended + i * attended, s.attended + s.picks[i] * attended,
                sizeof(float) * attended);
        }
    });
}

// Adds rows times a map to the residual stream, normed before where the layer has a norm there.
static void add_product(Team& team, const Model& m, const Step& s, const int32_t* tiles, long rows,
    const Linear& map, const Norm& norm) {
    const long hidden = row_of(m.hidden);
    if (!norm.gain && m.residual_scale == 1.0f)
        return multiply(team, tiles, rows, map, s.hidden, hidden, true);
    multiply(team, tiles, rows, map, s.normed, hidden, false);
    team.loop(rows, 8, [&](long row) {
        float *update = s.normed + row * hidden, *to = s.hidden + row * hidden;
        if (norm.gain) normalize(update, norm, m.hidden, m.epsilon, update);
        for (long i = 0; i < m.hidden; i += 8)
            store(to + i, load(to + i) + load(update + i) * m.residual_scale);
    });
}

static void run_layer(Team& team, const Model& m, long index, const Step& s, const Work& work,
    float* parts, Laps& laps) {
    const Layer& layer = m.layers[index];
    const long width = m.head_dim, qkv = row_of((m.heads + 2 * m.kv_heads) * width);
    const long attended = row_of(m.heads * width), up = row_of(m.inner * (m.gated() ? 2 : 1));
    const int32_t* tiles = fill_normed(team, m, s, s.rows, layer.attention_norm, layer.qkv);
    laps.end(Part::NORMS);
    multiply(team, tiles, s.rows, layer.qkv, s.qkv, qkv, false);
    laps.end(Part::QKV);
    team.loop(s.rows, 8, [&](long row) { place(m, layer, index, s, row, s.qkv + row * qkv); });
    laps.end(Part::PLACE);
    long rows = s.rows;
    const bool last = index + 1 == m.num_layers;
    if (last && s.picked == 0) return;  // keys and values are stored, and nobody reads the rest
    const View view = {m.kv_kind, side(m, index, 0), side(m, index, 1), m.kv_heads,
        m.heads / m.kv_heads, width, m.block_size, s.tables, s.table_row, m.query_scale,
        m.softcap, layer.window};
    attend(team, view, work, {s.starts, s.contexts}, s.qkv, qkv, s.attended, attended, parts);
    // After the last attention rows no longer depend on each other: those without a token are
    // dropped.
    if (last) keep(team, m, s), rows = s.picked;
    laps.end(Part::ATTENTION);
    tiles = fill_tiles(team, rows, layer.out, s.tiles,
        [&](long row, float*) { return s.attended + row * attended; });
    add_product(team, m, s, tiles, rows, layer.out, layer.attention_post_norm);
    laps.end(Part::OUT);
    tiles = fill_normed(team, m, s, rows, layer.mlp_norm, layer.up);
    laps.end(Part::NORMS);
    multiply(team, tiles, rows, layer.up, s.up, up, false);
    laps.end(Part::UP);
    tiles = fill_tiles(team, rows, layer.down, s.tiles, [&](long row, float* made) {
        const float* x = s.up + row * up;
        activate(m.form, x, x + m.inner, m.inner, made);
        return made;
    });
    laps.end(Part::ACTIVATION);
    add_product(team, m, s, tiles, rows, layer.down, layer.mlp_post_norm);
    laps.end(Part::DOWN);
}

// Puts a row's token, and its position where positions are learned, into the residual stream.
template <class T>
INLINE void embed(const Model& m, const T* table, const Step& s, long row) {
    const T* token = table + s.tokens[row] * m.hidden;
    float* out = s.hidden + row * row_of(m.hidden);
    for (long i = 0; i < m.hidden; i += 8) store(out + i, load(token + i) * m.embedding_scale);
    if (!m.positions) return;
    const float* place = m.positions + (s.positions[row] + m.position_offset) * m.hidden;
    for (long i = 0; i < m.hidden; i += 8) store(out + i, load(out + i) + load(place + i));
}

// Logits of the picked rows, and the likeliest tokens.
static void run_head(Team& team, const Model& m, const Step& s) {
    const long row = padded(m.vocab);
    const int32_t* tiles = fill_normed(team, m, s, s.picked, m.norm, m.head);
    multiply(team, tiles, s.picked, m.head, s.logits, row, false);
    team.loop(s.picked, 1, [&](long index) {
        float* logits = s.logits + index * row;
        if (m.logit_divisor != 1.0f)
            for (long i = 0; i < row; i += 8) store(logits + i, load(logits + i) / m.logit_divisor);
        if (m.logit_softcap > 0) settle<Eight>(logits, row, nullptr, m.logit_softcap);
        find_peak(logits, m.vocab, s.peaks + index, s.likeliest + index);
    });
}

// The attention of a step's rows, in layers without and with a window.
struct Sights {
    Work far, near;

    Sights(const Model& m, const Step& s) : far(cut(m, s, 0)), near(far) {
        long window = 0;
        for (long index = 0; index < m.num_layers; index++)
            window = std::max(window, (long)m.layers[index].window);
        if (window) near = cut(m, s, window);
    }
    const Work& of(const Layer& layer) const { return layer.window ? near : far; }
    static Work cut(const Model& m, const Step& s, long window) {
        return Work(s.sequences, s.decodes, m.kv_heads, m.heads / m.kv_heads, s.starts,
            s.contexts, window);
    }
    // Memory of the calling thread for what pieces of rows find.
    float* parts(const Model& m) const {
        static thread_local std::vector<float> memory;
        const long floats = far.num_parts * m.heads * (m.head_dim + 2);
        if ((long)memory.size() < floats) memory.resize(floats);
        return memory.data();
    }
};

// All layers and the head for the rows of a step.
static void run_layers(Team& team, const Model& m, const Step& s, const Sights& sights,
    float* parts, Laps& laps) {
    for (long index = 0; index < m.num_layers; index++)
        run_layer(team, m, index, s, sights.of(m.layers[index]), parts, laps);
    if (s.picked) run_head(team, m, s);
    laps.end(Part::HEAD);
}

static void run_model(Team& team, const Model& m, const Step& s) {
    for (long i = 0; i < s.sequences; i++) s.starts[i + 1] += s.starts[i];
    const Sights sights(m, s);
    float* parts = sights.parts(m);
    const std::vector<long> ends = cut_rows(team, m, s);
    // Stands elsewhere in each thread: the caller's, whose parts are timed, is told by its place.
    static thread_local char place;
    const char* caller = &place;
    team.run([&] {
        Laps laps(&place == caller ? s.seconds : nullptr);
        team.loop(s.rows, 8, [&](long row) {
            if (m.narrow_table) embed(m, (const bf16*)m.embedding, s, row);
            else embed(m, (const float*)m.embedding, s, row);
        });
        laps.end(Part::EMBEDDING);
        if (ends.empty()) return run_layers(team, m, s, sights, parts, laps);
        team.loop((long)ends.size(), 1, [&](long index) {
            static thread_local Team alone(1);
            const Share share(m, s, index ? ends[index - 1] : 0, ends[index]);
            const Sights own(m, share.step);
            run_layers(alone, m, share.step, own, own.parts(m), laps);
        });
        laps.end(Part::HEAD);
    });
}

extern "C" {

void steelyard_run(void* team, const Model* model, const Step* step) {
    run_model(*(Team*)team, *model, *step);
}
}
