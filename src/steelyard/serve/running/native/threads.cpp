// Threads that spin for a moment and then sleep, so that a machine that is busy with other work
// loses little; OpenMP's runtime spins for long, and PyTorch's threads would share its settings.
#include "threads.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

struct Team::State {
    int size;
    std::vector<std::thread> workers;
    void (*call)(const void*) = nullptr;
    const void* job = nullptr;
    std::atomic<bool> ended{false};
    std::atomic<int> arrived{0};
    std::vector<std::atomic<int>> processors = std::vector<std::atomic<int>>(size);
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

// Threads that wake each other often may be put on one processor and stay there, each waiting for
// the other's turn to end. Whoever finds itself on the processor of another moves once; it is bound
// to nothing afterwards.
void keep_apart(std::vector<std::atomic<int>>& processors, int index) {
#if defined(__linux__)
    const int here = sched_getcpu();
    processors[index] = here;
    bool shared = false;
    for (int other = 0; other < index; other++) shared |= processors[other] == here;
    cpu_set_t allowed, free;
    if (!shared || sched_getaffinity(0, sizeof allowed, &allowed)) return;
    free = allowed;
    for (int other = 0; other < index; other++) CPU_CLR(processors[other], &free);
    if (CPU_COUNT(&free) == 0 || sched_setaffinity(0, sizeof free, &free)) return;
    processors[index] = sched_getcpu();
    sched_setaffinity(0, sizeof allowed, &allowed);
#endif
}

}  // namespace

Team::Team(int size) : state_(*new State{size}) {
    for (int index = 1; index < size; index++)
        state_.workers.emplace_back([this, index] {
            for (uint32_t seen = 0;;) {
                seen = await(state_.calls, seen);
                if (state_.ended) return;
                keep_apart(state_.processors, index);
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
    keep_apart(state_.processors, 0);
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
