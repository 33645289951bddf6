#include "allocator/command/looks.h"

#include <algorithm>

#include "allocator/command/job_socket.h"

namespace firn::command {
namespace {

using Json = nlohmann::ordered_json;

double number_of(const Json& from, const char* key) {
  const auto found = from.is_object() ? from.find(key) : from.end();
  return found != from.end() && found->is_number() ? found->get<double>() : 0;
}

const Json& member(const Json& from, const char* key) {
  static const Json none;
  const auto found = from.is_object() ? from.find(key) : from.end();
  return found != from.end() ? *found : none;
}

/// How fast a counter grew.
double rate(const Json& now, const Json& before, const char* key, double seconds) {
  if (seconds <= 0 || !before.is_object()) return 0;
  return std::max(0.0, number_of(now, key) - number_of(before, key)) / seconds;
}

}  // namespace

void add_rates(Json& job, const Json& before, double seconds) {
  Json& devices = job["devices"];
  for (size_t i = 0; devices.is_array() && i < devices.size(); ++i) {
    Json& now = devices[i];
    const Json& all = member(before, "devices");
    static const Json none;
    const Json& then = all.is_array() && i < all.size() ? all[i] : none;
    now["out_bytes_s"] = rate(now, then, "spilled_bytes", seconds);
    now["in_bytes_s"] = rate(now, then, "faulted_bytes", seconds) +
                        rate(now, then, "prefetched_bytes", seconds);
    now["again_bytes_s"] = rate(now, then, "remade_bytes", seconds);
    now["faults_s"] = rate(now, then, "faults", seconds);
    now["stalled"] = rate(now, then, "stall_s", seconds);
  }
  const Json& store = member(before, "store");
  if (!job.contains("store")) return;
  job["store"]["write_bytes_s"] = rate(job["store"], store, "written_bytes", seconds);
  job["store"]["read_bytes_s"] = rate(job["store"], store, "read_bytes", seconds);
}

Json Looks::next(std::chrono::milliseconds patience) {
  Json look = {{"jobs", Json::array()}};
  std::map<pid_t, Before> seen;
  for (JobAnswer& answer : ask_jobs("watch", patience)) {
    Json job = {{"pid", answer.process}, {"command", job_words(answer.process)}};
    if (!answer.error.empty()) {
      job["error"] = answer.error;
    } else {
      job.update(answer.document);
      const auto now = std::chrono::steady_clock::now();
      const auto before = before_.find(answer.process);
      const bool known = before != before_.end();
      add_rates(job, known ? before->second.document : Json(),
                known ? std::chrono::duration<double>(now - before->second.at).count() : 0);
      seen[answer.process] = {now, std::move(answer.document)};
    }
    look["jobs"].push_back(std::move(job));
  }
  before_ = std::move(seen);
  return look;
}

}  // namespace firn::command
