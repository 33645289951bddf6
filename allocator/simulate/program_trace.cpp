#include "allocator/simulate/program_trace.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "allocator/base/numbers.h"
#include "allocator/blocks/block.h"
#include "allocator/runtime/config.h"
#include "allocator/simulate/csv_file.h"

namespace firn::simulate {

namespace {

constexpr uint64_t tensor_bytes_most = uint64_t{1} << 46;  // more than an engine's addresses
constexpr uint64_t duration_ns_most = uint64_t{1} << 56;   // of all iterations: two years
constexpr uint64_t tensors_most = 1u << 26;
constexpr uint64_t line_of(size_t index) { return index + 2; }  // below the header

bool parse_id(std::string_view word, uint64_t& id) {
  const std::optional<uint64_t> number = as_number<uint64_t>(word);
  if (number) id = *number;
  return number.has_value();
}

/// Tensor ids to indices: by position when ids are dense, else by hashing.
class Ids {
 public:
  explicit Ids(const std::vector<TraceTensor>& tensors) {
    uint64_t most = 0;
    for (const TraceTensor& tensor : tensors) most = std::max(most, tensor.id);
    dense_ = most < 8 * tensors.size() + 1024;
    if (dense_) table_.assign(most + 1, UINT32_MAX);
    for (uint32_t i = 0; i < tensors.size(); ++i)
      if (uint32_t first = add(tensors[i].id, i); first != i && duplicate_ == UINT32_MAX) {
        duplicate_ = i;
        first_ = first;
      }
  }
  uint32_t find(uint64_t id) const {
    if (dense_) return id < table_.size() ? table_[id] : UINT32_MAX;
    auto found = map_.find(id);
    return found == map_.end() ? UINT32_MAX : found->second;
  }
  /// The first tensor whose id was there before (UINT32_MAX: none), and where.
  uint32_t duplicate() const { return duplicate_; }
  uint32_t first() const { return first_; }

 private:
  uint32_t add(uint64_t id, uint32_t index) {
    if (!dense_) return map_.emplace(id, index).first->second;
    if (table_[id] == UINT32_MAX) table_[id] = index;
    return table_[id];
  }
  bool dense_ = true;
  std::vector<uint32_t> table_;
  std::unordered_map<uint64_t, uint32_t> map_;
  uint32_t duplicate_ = UINT32_MAX, first_ = UINT32_MAX;
};

Result<void> read_tensors(ProgramTrace& trace) {
  Result<CsvFile> file = CsvFile::open(trace.tensors_path, {"tensor", "bytes", "kind"});
  if (!file) return file.error();
  for (;;) {
    Result<bool> more = file->next();
    if (!more) return more.error();
    if (!*more) break;
    TraceTensor tensor;
    if (!parse_id(file->field(0), tensor.id))
      return file->wrong("tensor " + quote_word(file->field(0)) + " is not a whole number");
    Result<uint64_t> bytes = positive_number(file->field(1), tensor_bytes_most);
    if (!bytes) return file->wrong("bytes " + bytes.error().text);
    tensor.bytes = *bytes;
    const std::string_view kind = file->field(2);
    tensor.persistent = kind == "persistent";
    if (!tensor.persistent && kind != "transient")
      return file->wrong("kind " + quote_word(kind) + " must be persistent or transient");
    if (trace.tensors.size() == tensors_most)
      return file->wrong(fmt::format("more than {} tensors", tensors_most));
    trace.tensors.push_back(tensor);
  }
  if (trace.tensors.empty()) return file->wrong("no tensors below the header");
  return {};
}

class KernelReader {
 public:
  KernelReader(ProgramTrace& trace, const Ids& ids, CsvFile& file, bool has_where,
               unsigned iterations)
      : trace_(trace), ids_(ids), file_(file), has_where_(has_where), iterations_(iterations),
        seen_(trace.tensors.size(), 0) {}

  Result<void> read() {
    for (;;) {
      Result<bool> more = file_.next();
      if (!more) return more.error();
      if (!*more) break;
      if (Result<void> done = read_one(); !done) return done;
    }
    if (trace_.kernels.empty()) return file_.wrong("no kernels below the header");
    if (trace_.host_rows == trace_.kernels.size())
      return file_.wrong("no kernel runs on the GPU (where)");
    return {};
  }

 private:
  Result<void> read_one() {
    TraceKernel kernel;
    uint64_t id = 0;
    if (!parse_id(file_.field(0), id))
      return file_.wrong("kernel " + quote_word(file_.field(0)) + " is not a whole number");
    if (!fresh(id)) return file_.wrong(fmt::format("kernel {} is listed twice", id));
    Result<uint64_t> duration = positive_number(file_.field(2), duration_ns_most);
    if (!duration) return file_.wrong("duration_ns " + duration.error().text);
    kernel.duration_ns = *duration;
    if (Result<void> done = read_where(kernel); !done) return done;
    (kernel.host ? trace_.host_ns : trace_.duration_ns) += *duration;
    if (trace_.duration_ns + trace_.host_ns > duration_ns_most / iterations_)
      return file_.wrong(fmt::format("the durations add up to more than two years in {} "
                                     "iterations (--iterations)", iterations_));
    if ((trace_.kernels.size() + 1) * iterations_ > kernels_run_most)
      return file_.wrong(fmt::format("more than {} kernels; in {} iterations (--iterations) at "
                                     "most {} are run",
                                     trace_.kernels.size(), iterations_, kernels_run_most));
    kernel.uses_at = trace_.uses.size();
    Result<uint32_t> inputs = read_list("inputs", file_.field(3));
    if (!inputs) return inputs.error();
    Result<uint32_t> outputs = read_list("outputs", file_.field(4));
    if (!outputs) return outputs.error();
    kernel.inputs = *inputs;
    kernel.outputs = *outputs;
    kernel.line = static_cast<uint32_t>(line_of(trace_.kernels.size()));
    kernel.name_at = trace_.names.size();
    kernel.name_bytes = static_cast<uint32_t>(file_.field(1).size());
    trace_.names += file_.field(1);
    trace_.kernels.push_back(kernel);
    return {};
  }

  Result<void> read_where(TraceKernel& kernel) {
    if (!has_where_) return {};
    const std::string_view where = file_.field(5);
    kernel.host = where == "host";
    trace_.host_rows += kernel.host;
    if (kernel.host || where == "gpu") return {};
    return file_.wrong("where " + quote_word(where) + " must be gpu or host");
  }

  Result<uint32_t> read_list(const char* column, std::string_view list) {
    const auto index = static_cast<uint32_t>(trace_.kernels.size());
    const uint64_t mark = ++lists_;
    uint32_t count = 0;
    for (size_t at = 0; at < list.size();) {
      if (list[at] == ' ') {
        ++at;
        continue;
      }
      const size_t end = std::min(list.find(' ', at), list.size());
      const std::string_view word = list.substr(at, end - at);
      at = end;
      uint64_t id = 0;
      const uint32_t tensor = parse_id(word, id) ? ids_.find(id) : UINT32_MAX;
      if (tensor == UINT32_MAX)
        return file_.wrong(fmt::format("{} name the unknown tensor {}", column, quote_word(word)));
      if (seen_[tensor] == mark)
        return file_.wrong(fmt::format("{} name tensor {} twice", column, id));
      seen_[tensor] = mark;
      TraceTensor& named = trace_.tensors[tensor];
      if (named.first == no_kernel) named.first = index;
      named.last = index;
      trace_.uses.push_back(tensor);
      ++count;
    }
    return count;
  }

  /// Kernel ids that rise, as they mostly do, are looked up in no set.
  bool fresh(uint64_t id) {
    if (rising_ && (trace_.kernels.empty() || id > last_)) {
      last_ = id;
      past_.push_back(id);
      return true;
    }
    if (rising_) {
      rising_ = false;
      known_.insert(past_.begin(), past_.end());
      past_ = {};
    }
    return known_.insert(id).second;
  }

  ProgramTrace& trace_;
  const Ids& ids_;
  CsvFile& file_;
  const bool has_where_;
  const uint64_t iterations_;
  std::vector<uint64_t> seen_;  // per tensor: the last list that named it
  uint64_t lists_ = 0, last_ = 0;
  bool rising_ = true;                  // so far: then past_ holds every id, known_ none
  std::vector<uint64_t> past_;
  std::unordered_set<uint64_t> known_;
};

}  // namespace

Result<ProgramTrace> read_program_trace(const std::string& prefix, unsigned iterations) {
  ProgramTrace trace;
  trace.tensors_path = prefix + ".tensors.csv";
  trace.kernels_path = prefix + ".kernels.csv";
  if (Result<void> done = read_tensors(trace); !done) return done.error();
  const Ids ids(trace.tensors);
  if (uint32_t again = ids.duplicate(); again != UINT32_MAX)
    return invalid(fmt::format("{}:{}: tensor {} is already on line {}",
                               trace.tensors_path, line_of(again), trace.tensors[again].id,
                               line_of(ids.first())));
  Result<CsvFile> file =
      CsvFile::open(trace.kernels_path, {"kernel", "name", "duration_ns", "inputs", "outputs"});
  if (!file) return file.error();
  Result<bool> has_where = file->also("where");
  if (!has_where) return has_where.error();
  KernelReader reader(trace, ids, *file, *has_where, iterations);
  if (Result<void> done = reader.read(); !done) return done.error();
  return trace;
}

Result<void> ProgramTrace::check_fits(uint64_t gpu_bytes) const {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t frames = (tensors[i].bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
    if ((tensors[i].persistent || tensors[i].last != no_kernel) && frames > gpu_bytes)
      return invalid(fmt::format("{}:{}: tensor {} ({}) alone exceeds the GPU's {}", tensors_path,
                                 line_of(i), tensors[i].id, format_size(tensors[i].bytes),
                                 format_size(gpu_bytes)));
  }
  return {};
}

}  // namespace firn::simulate
