// The process's runtime: configuration, driver, store, one engine and one service thread per
// device. Front ends (PyTorch plugin, preload library, C API) build on it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "allocator/engine/engine.h"
#include "allocator/runtime/config.h"

namespace firn {

namespace record {
class Recorder;  // allocator/record/recorder.h
}
class TraceWriter;  // allocator/record/trace.h

class Runtime {
 public:
  static constexpr int devices_most = 16;  // the store's queues

  /// Opens driver and store; idempotent (a second call with other settings is invalid_argument). If
  /// another front end of Firn started first in this process, its runtime is used (meeting.h). No
  /// thread is started before the first device is opened.
  static Result<Runtime*> start(const Config& config);
  /// The started runtime, or null. Lock-free.
  static Runtime* get();

  /// The device's engine, opened at first use (retains the primary context, decides the budget,
  /// starts the service thread).
  virtual Result<Engine*> device(int ordinal) = 0;
  /// The opened engine, or null. Lock-free.
  virtual Engine* opened(int ordinal) const = 0;
  /// The engine whose arena holds `pointer`, or null. Lock-free.
  virtual Engine* around(const void* pointer) const = 0;
  /// The recorder of the opened device's operators; null when not tracing. Lock-free.
  virtual record::Recorder* recorder(int ordinal) const = 0;
  /// The trace; null when not tracing.
  virtual TraceWriter* trace() const = 0;
  virtual int device_count() const = 0;
  virtual const Config& config() const = 0;
  virtual const Driver& driver() const = 0;
  virtual Store* store() const = 0;

  /// Adds something that front ends know they cannot see to the statistics' "unseen" list.
  virtual void note_unseen(const std::string& words) = 0;
  /// Adds a member to the statistics' document: `json` returns its value's text, from then on until
  /// the process ends. A second one of that name replaces the first.
  virtual void add_section(const std::string& name, std::function<std::string()> json) = 0;
  /// `opened` is called for every device when it is opened, and now for those that are.
  virtual void on_open(std::function<void(Engine&)> opened) = 0;
  /// `covered` returns true while every block that the calling thread's next launch uses was
  /// touched by its front end: kernel inspection may skip that launch. Null: no front end says so.
  virtual void set_launch_covered(bool (*covered)()) = 0;
  virtual bool launch_covered() const = 0;
  /// Does a front end say so? Inspection then skips launches, so its touches are Seen::this_time.
  virtual bool covers_launches() const = 0;
  /// `enqueued` is called with the stream on which the calling thread is about to enqueue work;
  /// `context` returns a stream's context where that can make a difference, else null.
  using ContextOf = CUcontext (*)(CUstream stream);
  virtual void set_enqueued(void (*enqueued)(CUstream stream, ContextOf context)) = 0;
  virtual void enqueued(CUstream stream, ContextOf context) const = 0;
  /// Spills every block that may be spilled, on every opened device (adversarial mode).
  virtual void spill_all() = 0;

  /// `looked` is called, on a thread of Firn's, whenever a viewer (`firn top`) queries the control
  /// socket: work that pays only then may begin.
  virtual void on_look(std::function<void()> looked) = 0;

  /// Memory was refused, and the program is about to receive these words: writes the page for
  /// firn_oom_page, or for a trace. Cheap if repeated. Under no lock.
  virtual void refused_memory(std::string_view words) = 0;
  /// Call before the program receives the engine's `error`: counts a refusal, writes its page.
  void refused(Engine& engine, const Error& error) {
    if (error.code != Code::out_of_memory) return;
    engine.count_refusal();
    refused_memory(error.text);
  }

  /// The contract's --stats document (JSON text).
  virtual std::string stats_json() const = 0;
  /// Stops threads, writes the stats file, leaves memory to the operating system. At exit, after
  /// fork in the child (where it touches nothing), or by firn_shutdown().
  virtual void stop() = 0;
  virtual ~Runtime() = default;
};

}  // namespace firn
