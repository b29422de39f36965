// Measures PyTorch's caching allocator from compiled code and prints JSON lines. `work.rs` does the
// same work with this crate's allocator, with the same random numbers.
//
//   torch_alloc ROUNDS TIMES cached,threads,mixed,trace,fresh [TRACE.csv ...]

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace alloc = c10::cuda::CUDACachingAllocator;
using Clock = std::chrono::steady_clock;

static double nanoseconds(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double, std::nano>(end - start).count();
}

// Marsaglia's xorshift64.
struct Random {
  uint64_t state = 0x9e3779b97f4a7c15ull;

  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  }

  // Returns a size from 512 bytes to 32 MiB. Each power of two is equally frequent.
  size_t size() {
    uint64_t power = 9 + next() % 16;
    uint64_t least = 1ull << power;
    return least + next() % least;
  }
};

struct Options {
  int rounds;
  size_t times;
  std::string only;

  bool measures(const char* bench) const { return only.find(bench) != std::string::npos; }
};

static double median(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return (times[(times.size() - 1) / 2] + times[times.size() / 2]) / 2;
}

// Returns the median time per operation over the rounds. A first round is not counted.
static double measure(const Options& options, size_t operations, const std::function<double()>& run) {
  run();
  std::vector<double> times;
  for (int i = 0; i < options.rounds; i++) {
    times.push_back(run() / std::max<size_t>(operations, 1));
  }
  return median(times);
}

static double cached(cudaStream_t stream, size_t bytes, size_t times) {
  auto start = Clock::now();
  for (size_t i = 0; i < times; i++) {
    void* block = alloc::raw_alloc_with_stream(bytes, stream);
    alloc::raw_delete(block);
  }
  return nanoseconds(start, Clock::now());
}

// Returns the time from the first start to the last end. The threads start when all are ready.
static double threads(const std::vector<cudaStream_t>& streams, size_t bytes, size_t times) {
  std::atomic<size_t> ready{0};
  std::vector<std::pair<Clock::time_point, Clock::time_point>> spans(streams.size());
  std::vector<std::thread> all;
  for (size_t i = 0; i < streams.size(); i++) {
    all.emplace_back([&, i] {
      cached(streams[i], bytes, 100);
      ready.fetch_add(1);
      while (ready.load() < streams.size()) {
        std::this_thread::yield();
      }
      auto start = Clock::now();
      cached(streams[i], bytes, times);
      spans[i] = {start, Clock::now()};
    });
  }
  for (auto& thread : all) {
    thread.join();
  }
  auto start = spans[0].first;
  auto end = spans[0].second;
  for (auto& span : spans) {
    start = std::min(start, span.first);
    end = std::max(end, span.second);
  }
  return nanoseconds(start, end);
}

// Live blocks of mixed sizes. Each step frees one block and allocates another in its place.
struct Mixed {
  cudaStream_t stream;
  std::vector<void*> live;
  std::vector<std::pair<size_t, size_t>> steps;

  Mixed(cudaStream_t stream, size_t count, size_t times) : stream(stream) {
    Random random;
    for (size_t i = 0; i < count; i++) {
      live.push_back(alloc::raw_alloc_with_stream(random.size(), stream));
    }
    for (size_t i = 0; i < times; i++) {
      size_t which = random.next() % count;
      steps.emplace_back(which, random.size());
    }
  }

  ~Mixed() {
    for (void* block : live) {
      alloc::raw_delete(block);
    }
  }

  double run() {
    auto start = Clock::now();
    for (auto [which, bytes] : steps) {
      alloc::raw_delete(live[which]);
      live[which] = alloc::raw_alloc_with_stream(bytes, stream);
    }
    return nanoseconds(start, Clock::now());
  }
};

constexpr size_t FREE = SIZE_MAX;

struct Op {
  uint32_t slot;
  uint32_t stream;
  size_t bytes;  // or FREE
};

struct Trace {
  std::vector<Op> ops;
  std::vector<cudaStream_t> streams;
  size_t slots = 0;
};

static Trace read(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error("cannot open " + path);
  }
  Trace trace;
  std::unordered_map<uint64_t, uint32_t> live;
  std::unordered_map<uint64_t, uint32_t> streams;
  std::vector<uint32_t> empty;
  std::string line;
  while (std::getline(file, line)) {
    unsigned long long id = 0, bytes = 0, number = 0;
    if (std::sscanf(line.c_str(), "a,%llu,%llu,%llu", &id, &bytes, &number) == 3) {
      auto [stream, fresh] = streams.try_emplace(number, trace.streams.size());
      if (fresh) {
        trace.streams.push_back(
            number == 0 ? c10::cuda::getDefaultCUDAStream(0).stream()
                        : c10::cuda::getStreamFromPool(false, 0).stream());
      }
      uint32_t slot = trace.slots;
      if (empty.empty()) {
        trace.slots++;
      } else {
        slot = empty.back();
        empty.pop_back();
      }
      live[id] = slot;
      trace.ops.push_back({slot, stream->second, static_cast<size_t>(bytes)});
    } else if (std::sscanf(line.c_str(), "f,%llu", &id) == 1) {
      uint32_t slot = live.at(id);
      live.erase(id);
      empty.push_back(slot);
      trace.ops.push_back({slot, 0, FREE});
    }
  }
  return trace;
}

// Replays a trace. Returns the time from the event `from` on.
static double replay(const Trace& trace, size_t from = 0) {
  std::vector<void*> live(trace.slots, nullptr);
  auto start = Clock::now();
  for (size_t i = 0; i < trace.ops.size(); i++) {
    if (i == from) {
      start = Clock::now();
    }
    const Op& op = trace.ops[i];
    if (op.bytes == FREE) {
      alloc::raw_delete(live[op.slot]);
      live[op.slot] = nullptr;
    } else {
      live[op.slot] = alloc::raw_alloc_with_stream(op.bytes, trace.streams[op.stream]);
    }
  }
  auto end = Clock::now();
  for (void* block : live) {
    if (block != nullptr) {
      alloc::raw_delete(block);
    }
  }
  return nanoseconds(start, end);
}

static std::string stem(const std::string& path) {
  std::string name = path.substr(path.find_last_of('/') + 1);
  return name.substr(0, name.find('.'));
}

static void run(const Options& options, const std::vector<std::string>& traces) {
  const size_t sizes[] = {512, 4 << 10, 1 << 20, 64 << 20};
  c10::cuda::set_device(0);
  alloc::init(c10::cuda::device_count());
  cudaStream_t stream = c10::cuda::getDefaultCUDAStream(0).stream();
  for (size_t bytes : sizes) {
    if (!options.measures("cached")) {
      break;
    }
    alloc::emptyCache();
    double ns = measure(options, options.times, [&] { return cached(stream, bytes, options.times); });
    std::printf("{\"bench\":\"cached\",\"bytes\":%zu,\"ns_per_op\":%f}\n", bytes, ns);
  }
  for (size_t bytes : sizes) {
    if (!options.measures("threads")) {
      break;
    }
    for (size_t count : {1, 2, 4, 8}) {
      alloc::emptyCache();
      std::vector<cudaStream_t> streams;
      for (size_t i = 0; i < count; i++) {
        streams.push_back(c10::cuda::getStreamFromPool(false, 0).stream());
      }
      double ns = measure(
          options, options.times * count, [&] { return threads(streams, bytes, options.times); });
      std::printf(
          "{\"bench\":\"threads\",\"bytes\":%zu,\"threads\":%zu,\"ns_per_op\":%f,"
          "\"ns_per_op_of_a_thread\":%f}\n",
          bytes, count, ns, ns * count);
    }
  }
  for (size_t live : {100, 1000, 10000}) {
    if (!options.measures("mixed")) {
      break;
    }
    alloc::emptyCache();
    Mixed mixed(stream, live, options.times);
    double ns = measure(options, options.times, [&] { return mixed.run(); });
    std::printf("{\"bench\":\"mixed\",\"live\":%zu,\"ns_per_op\":%f}\n", live, ns);
  }
  for (const std::string& path : traces) {
    if (!options.measures("trace")) {
      break;
    }
    alloc::emptyCache();
    Trace trace = read(path);
    double ns = measure(options, trace.ops.size(), [&] { return replay(trace); });
    std::printf(
        "{\"bench\":\"trace\",\"trace\":\"%s\",\"ns_per_op\":%f}\n", stem(path).c_str(), ns);
  }
  for (const std::string& path : traces) {
    if (!options.measures("fresh")) {
      break;
    }
    Trace trace = read(path);
    size_t from = trace.ops.size() / 4;
    std::vector<double> times;
    double reserved = 0;
    for (int i = 0; i < options.rounds; i++) {
      alloc::emptyCache();
      alloc::resetPeakStats(0);
      times.push_back(replay(trace, from) / std::max<size_t>(trace.ops.size() - from, 1));
      auto stats = alloc::getDeviceStats(0);
      reserved = double(stats.reserved_bytes[0].peak) / double(stats.requested_bytes[0].peak);
    }
    std::printf(
        "{\"bench\":\"fresh\",\"trace\":\"%s\",\"ns_per_op\":%f,\"reserved\":%f}\n",
        stem(path).c_str(), median(times), reserved);
  }
}

int main(int count, char** arguments) {
  if (count < 4 || std::atoi(arguments[1]) < 1 || std::atoll(arguments[2]) < 1) {
    std::fprintf(stderr, "usage: %s ROUNDS TIMES BENCH,... [TRACE.csv ...]\n", arguments[0]);
    return 2;
  }
  Options options{
      std::atoi(arguments[1]), static_cast<size_t>(std::atoll(arguments[2])), arguments[3]};
  try {
    // Registers PyTorch's CUDA functions that c10 calls, and creates the allocator.
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    run(options, std::vector<std::string>(arguments + 4, arguments + count));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
