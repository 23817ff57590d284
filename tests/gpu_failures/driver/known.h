/* known.h: a kernel as the driver launches it, from its name and its arguments' addresses. */
#ifndef TEST_KNOWN_H
#define TEST_KNOWN_H

#include "simt.h"

#include <map>
#include <memory>
#include <string>
#include <tuple>

template <auto KERNEL>
struct Kernel;
template <class... A, void (*KERNEL)(A...)>
struct Kernel<KERNEL> {
  template <size_t... I>
  static void call(void **arguments, std::index_sequence<I...>) {
    KERNEL(*(A *)arguments[I]...);
  }
  static void thread(void *arguments) { call((void **)arguments, std::index_sequence_for<A...>()); }

  /* Copies of a launch's arguments, and where they are. */
  struct Kept {
    std::tuple<A...> values;
    void *at[sizeof...(A)];
  };
  template <size_t... I>
  static std::shared_ptr<void *> keep(void **arguments, std::index_sequence<I...>) {
    auto kept = std::make_shared<Kept>(Kept{std::tuple<A...>(*(A *)arguments[I]...), {}});
    ((kept->at[I] = &std::get<I>(kept->values)), ...);
    return {kept, kept->at};
  }
  static std::shared_ptr<void *> kept(void **arguments) { return keep(arguments, std::index_sequence_for<A...>()); }
};

/* Kernels by their names. */
struct Known {
  void (*thread)(void *);
  char *(*shared)(); /* where its dynamic shared memory is */
  std::shared_ptr<void *> (*kept)(void **arguments);
};

inline std::map<std::string, Known> &known() {
  static std::map<std::string, Known> all;
  return all;
}
inline bool know(std::initializer_list<std::pair<const std::string, Known>> these) {
  known().insert(these);
  return true;
}

#define WITH(SHARED, SPACE, NAME) {#NAME, {Kernel<SPACE::NAME>::thread, [] { return (char *)SHARED; }, Kernel<SPACE::NAME>::kept}}

#endif
