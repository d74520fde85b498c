// A few threads that run one function together and meet at barriers.
//
// They spin for a moment and then sleep, so that a machine that is busy with other work loses
// little; OpenMP's runtime spins for long, and PyTorch's threads would share its settings.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

class Team {
   public:
    explicit Team(int size) : size_(size) {
        for (int index = 1; index < size; index++)
            workers_.emplace_back([this] {
                for (uint32_t seen = 0;;) {
                    seen = await(calls_, seen);
                    if (ended_) return;
                    (*job_)();
                }
            });
    }

    ~Team() {
        ended_ = true;
        calls_.fetch_add(1);
        calls_.notify_all();
        for (std::thread& worker : workers_) worker.join();
    }

    // Runs a job on every thread, the caller's included; jobs begin and end together.
    void run(const std::function<void()>& job) {
        const std::function<void()> whole = [&] {
            job();
            barrier();
        };
        job_ = &whole;
        calls_.fetch_add(1);
        calls_.notify_all();
        whole();
    }

    // Within a job: shares the numbers [0, count) among the threads, `grain` at a time, and waits
    // until all are done.
    template <class Body>
    void loop(long count, long grain, const Body& body) {
        std::atomic<long>& next = next_[phase_.load() % 2];
        for (;;) {
            const long first = next.fetch_add(grain);
            if (first >= count) break;
            for (long index = first; index < std::min(count, first + grain); index++) body(index);
        }
        barrier();
    }

    int size() const { return size_; }

   private:
    // About ten microseconds: the gap between two loops of a step, not that between two steps.
    static constexpr int SPINS = 2000;

    // Waits until a counter leaves a value, and gives the new one.
    static uint32_t await(std::atomic<uint32_t>& counter, uint32_t old) {
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

    void barrier() {
        const uint32_t phase = phase_.load();
        if (arrived_.fetch_add(1) + 1 < size_) {
            await(phase_, phase);
            return;
        }
        arrived_ = 0;
        // The next loop counts on the other counter; this one is for the loop after it.
        next_[phase % 2] = 0;
        phase_.fetch_add(1);
        phase_.notify_all();
    }

    const int size_;
    std::vector<std::thread> workers_;
    const std::function<void()>* job_ = nullptr;
    std::atomic<uint32_t> calls_{0}, phase_{0};
    std::atomic<int> arrived_{0};
    std::atomic<long> next_[2] = {0, 0};
    std::atomic<bool> ended_{false};
};
