package io.kvmessenger.bindings;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;

/**
 * An interface whose abstract methods are functions of a native library. {@link BindingProcessor} writes the class that
 * calls them: {@code Ffm} and the interface's name, in its package.
 *
 * <p>A method is the C function of its name; {@link C} says otherwise. Its types give those of C: {@code byte},
 * {@code int} and {@code long} by their width, {@code MemorySegment} a pointer to it; a {@code String} is the text that
 * a returned pointer refers to.
 */
@Retention(RetentionPolicy.SOURCE)
@Target(ElementType.TYPE)
public @interface NativeLibrary {
    /** The name by which the loader finds the library; "" for what is in the process already. */
    String file() default "";

    /** A variable of the environment that is set to 1 before the library is loaded; "" for none. */
    String environment() default "";

    Failures failures() default Failures.AS_RETURNED;

    /** Whether {@code Forwarding} and the name is written too: a class that passes each call on. */
    boolean forwarded() default false;

    /** How functions report failures. Results of pointers and structs that are no number are returned as they are. */
    enum Failures {
        /** By what they return, which the method returns too. */
        AS_RETURNED,
        /** By -1 and errno: the method returns {@code -errno}. */
        ERRNO,
        /** By a null pointer, -1 and errno, or by returning the number: the method returns {@code -errno}. */
        ERRNO_OR_NUMBER
    }
}
