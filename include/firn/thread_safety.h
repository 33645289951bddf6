// Which functions need the engine's lock, and which may not have it, in words that clang proves
// (-Wthread-safety; tests/command/test_lock_analysis.py). Other compilers read nothing of it.
//
// One role, engine_lock, stands for the lock of whichever engine a thread is in: parts of an engine
// know its lock by this name, and not the mutex. LockedEngine (allocator/memory/driver_time.h)
// takes it for a scope, and UnlockedEngine gives it back for one.
//
// Attributes stand behind the parameters, and behind `const` and `override`. A lambda that is
// called with the lock has one too: `[&](Block& block) FIRN_HELD { ... }`. A std::function is
// called without a proof.
#pragma once

#ifdef __clang__
#define FIRN_ANALYSIS(...) __attribute__((__VA_ARGS__))
#else
#define FIRN_ANALYSIS(...)
#endif

#define FIRN_CAPABILITY(name) FIRN_ANALYSIS(capability(name))
/// Of a class: its objects take what they hold, and give it back at their end.
#define FIRN_SCOPED FIRN_ANALYSIS(scoped_lockable)

/// Of a function: its caller holds these; its caller holds none of them.
#define FIRN_REQUIRES(...) FIRN_ANALYSIS(requires_capability(__VA_ARGS__))
#define FIRN_EXCLUDES(...) FIRN_ANALYSIS(locks_excluded(__VA_ARGS__))
/// Of a function: it takes them, gives them back, or takes them if it returns true.
#define FIRN_ACQUIRE(...) FIRN_ANALYSIS(acquire_capability(__VA_ARGS__))
#define FIRN_RELEASE(...) FIRN_ANALYSIS(release_capability(__VA_ARGS__))
#define FIRN_TRY_ACQUIRE(...) FIRN_ANALYSIS(try_acquire_capability(true __VA_OPT__(, ) __VA_ARGS__))
/// Of a function: from its call on they count as held. The reason stands beside it.
#define FIRN_ASSERTS(...) FIRN_ANALYSIS(assert_capability(__VA_ARGS__))
/// Of a function: what it returns is this. For templates whose users have locks of their own.
#define FIRN_RETURNS(capability) FIRN_ANALYSIS(lock_returned(capability))
/// Of a member: it is read and written by a thread that holds this.
#define FIRN_GUARDED_BY(capability) FIRN_ANALYSIS(guarded_by(capability))
/// Of a function: the analysis leaves it out. The reason stands beside it.
#define FIRN_NO_ANALYSIS FIRN_ANALYSIS(no_thread_safety_analysis)

namespace firn {

class FIRN_CAPABILITY("lock") EngineLock {};
inline EngineLock engine_lock;

/// In place of it where one thread has all to itself.
class FIRN_CAPABILITY("no lock") NoLock {};
inline NoLock no_lock;

}  // namespace firn

/// Of a function: its caller holds the engine's lock. (One that is given the Lock may release it
/// meanwhile, and has taken it again when it returns.)
#define FIRN_HELD FIRN_REQUIRES(::firn::engine_lock)
/// Of a function that waits, or takes the lock: its caller does not hold it.
#define FIRN_NOT_HELD FIRN_EXCLUDES(::firn::engine_lock)
/// Of a member: it is used with the engine's lock only.
#define FIRN_GUARDED FIRN_GUARDED_BY(::firn::engine_lock)
