// Threads that spin for a moment and then sleep, so that a machine that is busy with other work
// loses little; OpenMP's runtime spins for long, and PyTorch's threads would share its settings.
#include "threads.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

struct Team::State {
    int size;
    std::vector<std::thread> workers;
    void (*call)(const void*) = nullptr;
    const void* job = nullptr;
    std::atomic<bool> ended{false};
    std::atomic<int> arrived{0};
    // Each on a line of its own: one is written while the others are watched.
    alignas(64) std::atomic<uint32_t> calls{0};
    alignas(64) std::atomic<uint32_t> phase{0};
    alignas(64) std::atomic<long> next[2] = {0, 0};
};

namespace {

// About ten microseconds: the gap between two loops of a step, not that between two steps.
constexpr int SPINS = 2000;

// Waits until a counter leaves a value, and gives the new one.
uint32_t await(std::atomic<uint32_t>& counter, uint32_t old) {
    for (int turn = 0; turn < SPINS; turn++) {
        const uint32_t now = counter.load();
        if (now != old) return now;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    counter.wait(old);
    return counter.load();
}

}  // namespace

Team::Team(int size) : state_(*new State{size}) {
    for (int index = 1; index < size; index++)
        state_.workers.emplace_back([this] {
            for (uint32_t seen = 0;;) {
                seen = await(state_.calls, seen);
                if (state_.ended) return;
                state_.call(state_.job);
                barrier();
            }
        });
}

Team::~Team() {
    state_.ended = true;
    state_.calls.fetch_add(1);
    state_.calls.notify_all();
    for (std::thread& worker : state_.workers) worker.join();
    delete &state_;
}

int Team::size() const { return state_.size; }

void Team::run_job(void (*call)(const void*), const void* job) {
    state_.call = call;
    state_.job = job;
    state_.calls.fetch_add(1);
    state_.calls.notify_all();
    call(job);
    barrier();
}

long Team::claim(long grain) { return state_.next[state_.phase.load() % 2].fetch_add(grain); }

void Team::barrier() {
    const uint32_t phase = state_.phase.load();
    if (state_.arrived.fetch_add(1) + 1 < state_.size) {
        await(state_.phase, phase);
        return;
    }
    state_.arrived = 0;
    // The next loop counts on the other counter; this one is for the loop after it.
    state_.next[phase % 2] = 0;
    state_.phase.fetch_add(1);
    state_.phase.notify_all();
}
