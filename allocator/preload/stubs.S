/* The stand-in's exports: each driver entry jumps on through firn_targets[index], with the
 * arguments as they came; an empty slot is filled on the way (firn_resolve). And dlopen: checks the
 * name, then jumps to the real dlopen, so that the caller stays the caller (for its RPATH, and for
 * what RTLD_NEXT means to it). */

#if defined(__x86_64__)

#define N(index, name)                      \
  .globl name;                              \
  .type name, @function;                    \
  .balign 16;                               \
  name: endbr64;                            \
  movq firn_targets + 8 * index(%rip), %r11; \
  testq %r11, %r11;                         \
  je 1f;                                    \
  jmp *%r11;                                \
  1: movl $index, %eax;                     \
  jmp resolve_and_jump;                     \
  .size name, . - name;

  .hidden firn_targets
  .hidden firn_resolve
  .hidden firn_dlopen_name
  .hidden firn_next_dlopen

  .text
  .cfi_startproc
#include "names.inc"
  .cfi_endproc

  .type resolve_and_jump, @function
resolve_and_jump:
  .cfi_startproc
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  pushq %rdi
  pushq %rsi
  pushq %rdx
  pushq %rcx
  pushq %r8
  pushq %r9
  subq $128, %rsp
  movups %xmm0, (%rsp)
  movups %xmm1, 16(%rsp)
  movups %xmm2, 32(%rsp)
  movups %xmm3, 48(%rsp)
  movups %xmm4, 64(%rsp)
  movups %xmm5, 80(%rsp)
  movups %xmm6, 96(%rsp)
  movups %xmm7, 112(%rsp)
  movl %eax, %edi
  call firn_resolve
  movq %rax, %r11
  movups (%rsp), %xmm0
  movups 16(%rsp), %xmm1
  movups 32(%rsp), %xmm2
  movups 48(%rsp), %xmm3
  movups 64(%rsp), %xmm4
  movups 80(%rsp), %xmm5
  movups 96(%rsp), %xmm6
  movups 112(%rsp), %xmm7
  addq $128, %rsp
  popq %r9
  popq %r8
  popq %rcx
  popq %rdx
  popq %rsi
  popq %rdi
  popq %rbp
  .cfi_def_cfa %rsp, 8
  jmp *%r11
  .cfi_endproc
  .size resolve_and_jump, . - resolve_and_jump

  .globl dlopen
  .type dlopen, @function
dlopen:
  .cfi_startproc
  endbr64
  pushq %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset %rbp, -16
  movq %rsp, %rbp
  .cfi_def_cfa_register %rbp
  pushq %rsi
  subq $8, %rsp
  call firn_dlopen_name
  movq %rax, %rdi
  addq $8, %rsp
  popq %rsi
  popq %rbp
  .cfi_def_cfa %rsp, 8
  movq firn_next_dlopen(%rip), %r11
  jmp *%r11
  .cfi_endproc
  .size dlopen, . - dlopen

#elif defined(__aarch64__)

#define N(index, name)                      \
  .globl name;                              \
  .type name, %function;                    \
  .balign 16;                               \
  name: hint 34;                            \
  adrp x16, firn_targets + 8 * index;       \
  ldr x16, [x16, :lo12:firn_targets + 8 * index]; \
  cbz x16, 1f;                              \
  br x16;                                   \
  1: mov w17, index;                        \
  b resolve_and_jump;                       \
  .size name, . - name;

  .hidden firn_targets
  .hidden firn_resolve
  .hidden firn_dlopen_name
  .hidden firn_next_dlopen

  .text
  .cfi_startproc
#include "names.inc"
  .cfi_endproc

  /* x16 and x17 are the two registers that a call may clobber on its way. */
  .type resolve_and_jump, %function
resolve_and_jump:
  .cfi_startproc
  stp x29, x30, [sp, -224]!
  .cfi_def_cfa_offset 224
  .cfi_offset x29, -224
  .cfi_offset x30, -216
  mov x29, sp
  stp x0, x1, [sp, 16]
  stp x2, x3, [sp, 32]
  stp x4, x5, [sp, 48]
  stp x6, x7, [sp, 64]
  str x8, [sp, 80]
  stp q0, q1, [sp, 96]
  stp q2, q3, [sp, 128]
  stp q4, q5, [sp, 160]
  stp q6, q7, [sp, 192]
  mov w0, w17
  bl firn_resolve
  mov x16, x0
  ldp x0, x1, [sp, 16]
  ldp x2, x3, [sp, 32]
  ldp x4, x5, [sp, 48]
  ldp x6, x7, [sp, 64]
  ldr x8, [sp, 80]
  ldp q0, q1, [sp, 96]
  ldp q2, q3, [sp, 128]
  ldp q4, q5, [sp, 160]
  ldp q6, q7, [sp, 192]
  ldp x29, x30, [sp], 224
  .cfi_def_cfa_offset 0
  br x16
  .cfi_endproc
  .size resolve_and_jump, . - resolve_and_jump

  .globl dlopen
  .type dlopen, %function
dlopen:
  .cfi_startproc
  hint 34
  stp x29, x30, [sp, -32]!
  .cfi_def_cfa_offset 32
  .cfi_offset x29, -32
  .cfi_offset x30, -24
  mov x29, sp
  str x1, [sp, 16]
  bl firn_dlopen_name
  ldr x1, [sp, 16]
  ldp x29, x30, [sp], 32
  .cfi_def_cfa_offset 0
  adrp x16, firn_next_dlopen
  ldr x16, [x16, :lo12:firn_next_dlopen]
  br x16
  .cfi_endproc
  .size dlopen, . - dlopen

#else
#error "the stand-in has stubs for x86-64 and arm64"
#endif

  .section .note.GNU-stack, "", %progbits
