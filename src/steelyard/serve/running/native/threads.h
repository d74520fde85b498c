// A few threads that run one function together and meet at barriers.
#pragma once

#include <algorithm>

class Team {
   public:
    explicit Team(int size);
    ~Team();

    // Runs a job on every thread, the caller's included; jobs begin and end together.
    template <class Job>
    void run(const Job& job) {
        run_job([](const void* it) { (*(const Job*)it)(); }, &job);
    }

    // Within a job: shares the numbers [0, count) among the threads, `grain` at a time, and waits
    // until all are done.
    template <class Body>
    void loop(long count, long grain, const Body& body) {
        for (long first; (first = claim(grain)) < count;)
            for (long index = first; index < std::min(count, first + grain); index++) body(index);
        barrier();
    }

    // As `loop`, one at a time; the body is also told the number that its thread takes next, `count`
    // if there is none.
    template <class Body>
    void loop_ahead(long count, const Body& body) {
        for (long index = claim(1); index < count;) {
            const long next = std::min(claim(1), count);
            body(index, next);
            index = next;
        }
        barrier();
    }

    int size() const;

   private:
    // Defined in one file, so that the others need none of the large headers of threads.
    struct State;

    void run_job(void (*call)(const void*), const void* job);
    long claim(long grain);
    void barrier();

    State& state_;
};
