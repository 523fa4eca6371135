package io.kvmessenger.bindings;

import java.io.IOException;
import java.io.Writer;
import java.util.List;
import java.util.Set;
import javax.annotation.processing.AbstractProcessor;
import javax.annotation.processing.RoundEnvironment;
import javax.annotation.processing.SupportedAnnotationTypes;
import javax.lang.model.SourceVersion;
import javax.lang.model.element.Element;
import javax.lang.model.element.ExecutableElement;
import javax.lang.model.element.Modifier;
import javax.lang.model.element.TypeElement;
import javax.lang.model.util.ElementFilter;
import javax.tools.Diagnostic;

/** Writes the classes that each {@link NativeLibrary} asks for. */
@SupportedAnnotationTypes("io.kvmessenger.bindings.NativeLibrary")
public final class BindingProcessor extends AbstractProcessor {
    @Override
    public SourceVersion getSupportedSourceVersion() {
        return SourceVersion.latest();
    }

    @Override
    public boolean process(Set<? extends TypeElement> annotations, RoundEnvironment round) {
        for (Element element : round.getElementsAnnotatedWith(NativeLibrary.class)) {
            try {
                write((TypeElement) element);
            } catch (IllegalArgumentException | IOException e) {
                processingEnv.getMessager().printMessage(Diagnostic.Kind.ERROR, e.getMessage(), element);
            }
        }
        return false;
    }

    private void write(TypeElement type) throws IOException {
        String packageName = processingEnv
                .getElementUtils()
                .getPackageOf(type)
                .getQualifiedName()
                .toString();
        List<NativeFunction> functions = ElementFilter.methodsIn(type.getEnclosedElements()).stream()
                .filter(method -> method.getModifiers().contains(Modifier.ABSTRACT))
                .map((ExecutableElement method) -> new NativeFunction(method))
                .toList();
        String name = type.getSimpleName().toString();
        NativeLibrary library = type.getAnnotation(NativeLibrary.class);
        write(
                type,
                packageName + "." + BindingWriter.className(name),
                new BindingWriter(packageName, name, library, functions).calls());
        if (library.forwarded()) {
            write(
                    type,
                    packageName + "." + BindingWriter.forwardingName(name),
                    new BindingWriter(packageName, name, library, functions).forwards());
        }
    }

    private void write(TypeElement of, String className, String source) throws IOException {
        try (Writer file =
                processingEnv.getFiler().createSourceFile(className, of).openWriter()) {
            file.write(source);
        }
    }
}
